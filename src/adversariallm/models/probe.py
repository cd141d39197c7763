"""Asks an endpoint a few short questions to see what it honors, beside what its options claim.

A server may take an option and ignore it, which no error shows. Nothing here changes the options;
about a dozen small requests are sent and paid for. What is not claimed is not tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adversariallm.models.remote import RemoteModel

if TYPE_CHECKING:
    from judgezoo.backends import ChatReply

WORDS = ({"role": "user", "content": "Write one random word after another, each a different one."},)
HELLO = ({"role": "user", "content": "Say hello."},)
RULES = tuple(
    {"role": "system", "content": " ".join(["You are asked by a program."] * times)}
    for times in (1, 12)
)
"""A short and a long system message: a template may write one of its own where there is none."""
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": [7, 8, 9]}},
    "required": ["number"],
    "additionalProperties": False,
}
IDS = tuple(range(40, 60))
"""Ids that every usual tokenizer has."""
OTHER_FIELD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


@dataclass(frozen=True)
class Observed:
    """One ability.

    Attributes:
        ability: what was tried.
        claimed: what the options of the endpoint say.
        seen: what the answers show; None where they show nothing.
        detail: in words.
        setting: what `models.NAME.capabilities` would have to say for both to agree.
    """

    ability: str
    claimed: bool
    seen: bool | None
    detail: str
    setting: Mapping[str, object] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether nothing speaks against the claim."""
        return self.seen is None or self.seen == self.claimed


def probe(model: RemoteModel) -> list[Observed]:
    """What the endpoint honors; a single row if it does not answer at all.

    Args:
        model: the endpoint; its reply cache is passed by, so that the server is really asked.
    """
    return list(_Probe(model).rows())


class _Probe:
    """The questions to one endpoint."""

    def __init__(self, model: RemoteModel) -> None:
        self.model = model
        self.able = model.backend.capabilities

    def rows(self) -> Iterator[Observed]:
        first = self.ask(max_tokens=8)
        if first.status != "ok":
            yield Observed("answers", True, False, str(first.error or first.status))
            return
        served = first.served_model or self.model.name
        yield Observed("answers", True, True, f"{served}, in {first.latency_s:.2f} s")
        yield _usage(first)
        yield self.limit()
        yield from self.system()
        tried = {
            "temperature": (self.able.temperature, self.temperature),
            "seed": (self.able.seed, self.seed),
            "stop": (self.able.stop, self.stop),
            "n": (self.able.n, self.samples),
            "logprobs": (self.able.logprobs, self.logprobs),
            "schema": (self.able.schema_mode == "strict", self.schema),
            "prefill": (self.able.prefill != "none", self.prefill),
            "token_ids": (self.able.token_ids != "none", self.token_ids),
        }
        for ability, (claimed, look) in tried.items():
            yield look() if claimed else Observed(ability, False, None, "not claimed, not tried")

    def ask(self, messages: Any = WORDS, **options: Any) -> ChatReply:
        from judgezoo.backends import ChatRequest

        wanted = {"max_tokens": 8, "temperature": 0.0 if self.able.temperature else None, **options}
        (reply,) = self.model.backend.generate([ChatRequest(messages=messages, **wanted)])
        return reply

    def limit(self) -> Observed:
        """Whether the token limit holds, and under which name."""
        name = self.model.backend.config.token_field()
        long = self.ask(max_tokens=2).usage.output_tokens
        told = f"{name}: {long} tokens for 2" if long else f"{name}: no tokens counted"
        held = long <= 2 if long else None
        if held is False:
            told += f"; try max_tokens_field={OTHER_FIELD[name]}"
        return Observed("max_new_tokens", True, held, told)

    def system(self) -> Iterator[Observed]:
        """Whether a system message reaches the model: a longer one gives a longer prompt."""
        setting = {"system_role": False}
        if not self.able.system_role:
            yield Observed("system_role", False, None, "not claimed, not tried")
            return
        replies = [self.ask((rules, *WORDS)) for rules in RULES]
        failed = next((r for r in replies if r.status != "ok"), None)
        if failed is not None:
            yield Observed("system_role", True, False, str(failed.error), setting)
            return
        short, long = (r.usage.input_tokens for r in replies)
        told = f"{short} tokens in with a short system message, {long} with a long one"
        yield Observed("system_role", True, long > short if short else None, told, setting)

    def drawn(self, *seeds: int | None) -> list[str]:
        """Sampled answers, one after the other."""
        texts = []
        for seed in seeds:
            given = seed if self.able.seed else None
            temperature = 1.0 if self.able.temperature else None
            texts.append(self.ask(max_tokens=12, temperature=temperature, seed=given).text)
        return texts

    def temperature(self) -> Observed:
        varied = len(set(self.drawn(1, 2, 3))) > 1
        told = "answers differ" if varied else "all equal"
        return Observed("temperature", True, varied, told, {"temperature": False})

    def seed(self) -> Observed:
        first, again, *others = self.drawn(1, 1, 2, 3)
        if len({first, *others}) == 1:
            return Observed("seed", True, None, "answers do not vary, which shows nothing")
        told = "repeated" if first == again else "not repeated"
        return Observed("seed", True, first == again, told, {"seed": False})

    def stop(self) -> Observed:
        reply = self.ask(stop=(" ",))
        told = f"{len(reply.text)} characters before a blank"
        cut = reply.status == "ok" and " " not in reply.text
        return Observed("stop", True, cut, told, {"stop": False})

    def samples(self) -> Observed:
        temperature = 1.0 if self.able.temperature else None
        reply = self.ask(n=2, temperature=temperature)
        got = f"{len(reply.choices)} of 2 choices" if reply.choices else str(reply.error)
        return Observed("n", True, len(reply.choices) == 2, got, {"n": False})

    def logprobs(self) -> Observed:
        reply = self.ask(top_logprobs=2)
        found = reply.choices[0].logprobs if reply.choices else None
        told = f"for {len(found)} tokens" if found else "none came"
        return Observed("logprobs", True, bool(found), told, {"logprobs": False})

    def schema(self) -> Observed:
        reply = self.ask(HELLO, max_tokens=32, schema=SCHEMA)
        held = _fits(reply.text)
        told = reply.text[:40] or str(reply.error)
        return Observed("schema", True, held, told, {"schema_mode": "none"})

    def prefill(self) -> Observed:
        """Whether an opened answer is taken as such: a server that ignores it counts no more."""
        plain = self.ask(HELLO).usage.input_tokens
        opened = self.ask(HELLO, prefill="One two three four five").usage.input_tokens
        told = f"{plain} tokens in without it, {opened} with it"
        seen = opened > plain if plain and opened else None
        return Observed("prefill", True, seen, told, {"prefill": "none"})

    def token_ids(self) -> Observed:
        reply = self.ask(prompt_ids=IDS)
        read = reply.usage.input_tokens
        told = f"{read} read of {len(IDS)}" if reply.status == "ok" else str(reply.error)
        setting = {"token_ids": "none"}
        return Observed("token_ids", True, read == len(IDS), told, setting)


def _usage(reply: ChatReply) -> Observed:
    used = reply.usage
    counts = {
        "in": used.input_tokens,
        "out": used.output_tokens,
        "cached": used.cached_tokens,
        "reasoning": used.reasoning_tokens,
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    counted = used.input_tokens > 0 and used.output_tokens > 0
    return Observed("usage", True, counted, f"tokens: {told}" if told else "no tokens counted")


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("number") in (7, 8, 9)

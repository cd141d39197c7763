"""What `doctor` says about a model's chat template, stop tokens, BOS and system prompt.

It reads the small files of a model only and judges no answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from adversariallm.cli.doctor import Finding, guarded
from adversariallm.core.types import Conversation, Message

if TYPE_CHECKING:
    from adversariallm.models.card import ModelCard
    from adversariallm.models.options import ModelOptions
    from adversariallm.tokenization import ChatTokenizer

TALK = Conversation.user("What is the capital of France?")
NEUTRAL = (
    TALK,
    Conversation.user("What is the capital of France?", system="Answer in one sentence."),
    Conversation(
        (Message("user", "Hello!"), Message("assistant", "Hello."), Message("user", "And now?"))
    ),
    Conversation.user("  Two blanks before, one line after.\n"),
    Conversation.user("Gr\u00fc\u00dfe aus K\u00f6ln \U0001f642"),
)


@dataclass(frozen=True)
class Subject:
    """A model as far as its small files tell.

    Attributes:
        name: what the user typed.
    """

    name: str
    card: ModelCard
    options: ModelOptions
    chat: ChatTokenizer


def check_chat(name: str, options: ModelOptions) -> Iterator[Finding]:
    """Everything about one model; a check that breaks is a finding and does not stop the others."""
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.loading import load_chat
    from adversariallm.models.options import resolve

    card = resolve(name, options)
    if isinstance(card, EndpointCard):
        yield Finding(f"tokenization of {name}", "note", "behind an endpoint, nothing to check")
        return
    facts = {"pin": card.pin, "checked": card.checked}
    yield Finding(f"row of {name}", "ok", f"pin {card.pin}, checked: {card.checked}", facts=facts)
    subject = Subject(name, card, options, load_chat(card, options))
    for title, check in CHECKS.items():
        yield from guarded(partial(check, subject), f"{title} of {name}")


def template(subject: Subject) -> Iterator[Finding]:
    """Which template is in force, and how far it was checked."""
    from adversariallm.tokenization import list_templates

    used = subject.chat.template
    known = {f"ours:{t.name}": t for t in list_templates()}.get(used.origin)
    checked: str
    if known is not None:
        checked, told = known.checked, f"checked: {known.checked}"
        told += f" (against {known.compared_with})" if known.compared_with else ""
        told += "".join(f"; intended: {line}" for line in known.differences)
    elif used.origin == "tokenizer":
        checked = subject.card.checked
        told = f"as the checkpoint ships it, checked: {checked}"
    else:
        checked, told = "no", "given by you, not checked by us"
    yield Finding(
        f"template of {subject.name}",
        "ok" if checked in ("run", "rendered") or used.origin == "tokenizer" else "note",
        f"{used.origin}, hash {used.hash}, {told}",
        facts={
            "origin": used.origin,
            "hash": used.hash,
            "checked": checked,
            "intended_differences": list(known.differences) if known else [],
        },
    )


def shipped(subject: Subject) -> Iterator[Finding]:
    """Where the template in force renders other text than the one the tokenizer ships."""
    from adversariallm.core.errors import TemplateError
    from adversariallm.tokenization.formats import diff_renderings, find_template

    used, title = subject.chat.template, f"shipped template of {subject.name}"
    if used.origin == "tokenizer":
        return
    try:
        other = find_template(None, subject.chat.tokenizer, used.clock)
    except TemplateError:
        yield Finding(title, "ok", "none, so there is nothing to compare with")
        return
    diffs = diff_renderings(used, replace(other, variables=used.variables), NEUTRAL)
    facts = {"differences": diffs, "conversations": len(NEUTRAL)}
    if not diffs:
        same = f"{used.origin} renders the same text in {len(NEUTRAL)} conversations"
        yield Finding(title, "ok", same, facts=facts)
        return
    shown = "\n".join("    " + line for line in diffs[0].split("\n"))
    yield Finding(
        title,
        "note",
        f"differs in {len(diffs)} of {len(NEUTRAL)} neutral conversations (--json shows all),"
        f" - in force, + shipped:\n{shown}",
        f"models.{subject.name}.template=tokenizer takes the shipped one",
        facts,
    )


def segments(subject: Subject) -> Iterator[Finding]:
    """Whether the spans of a conversation are exactly its ids."""
    rendered = subject.chat.encode(TALK)
    made = subject.chat.segments(TALK, target="Sure, here is")
    same = made.input_ids == rendered
    yield Finding(
        f"segments of {subject.name}",
        "ok" if same else "problem",
        f"{len(made.spans)} spans concatenate to the {len(rendered)} ids of the rendering"
        if same
        else "the spans do not concatenate to the ids of the rendered conversation",
    )


def stops(subject: Subject) -> Iterator[Finding]:
    """What ends an answer, and which place names it."""
    chat = subject.chat
    found = chat.stops(_generation_config(subject))
    sources = {place: list(ids) for place, ids in found.sources.items()}
    extra = [i for text in subject.card.stop_tokens for i in chat.codec.encode(text)]
    if extra:
        sources["catalog row"] = extra
    ids = sorted({i for named in sources.values() for i in named})
    told = [
        f"{i} {chat.decode([i])!r} ({', '.join(p for p, named in sources.items() if i in named)})"
        for i in ids
    ]
    told += [f"text {text!r} (template)" for text in found.strings]
    yield Finding(
        f"stop tokens of {subject.name}",
        "ok" if told else "problem",
        ", ".join(told) or "none: answers only end at max_new_tokens",
        "" if told else "name them in `stop_tokens` of the model's row",
        {"ids": ids, "strings": list(found.strings), "sources": sources},
    )


def _generation_config(subject: Subject) -> Any:
    """The generation config that the loaded model will have."""
    from transformers import AutoConfig, GenerationConfig

    from adversariallm.models.sources import fetch

    folder = fetch(subject.card, weights=False)
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:  # none is shipped: transformers derives one
        trusted = subject.options.trust_remote_code
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        return GenerationConfig.from_model_config(config)


def bos(subject: Subject) -> Iterator[Finding]:
    """Who writes BOS, and whether it is there once."""
    chat, title = subject.chat, f"BOS of {subject.name}"
    bare = chat.codec.encode(chat.render(TALK).text)
    added = chat.missing_bos(bare)
    token = chat.tokenizer.bos_token_id
    ids = chat.encode(TALK)
    count = next((n for n, i in enumerate(ids) if i != token), len(ids)) if token is not None else 0
    written = bool(bare) and bare[0] == token
    who = "the template writes it" if written else "we add what the tokenizer puts before text"
    facts = {"id": token, "count": count, "template_writes": written, "added": list(added)}
    if count == 0:
        told = "conversations start without one" + (f", we add {list(added)}" if added else "")
        yield Finding(title, "ok", told, facts=facts)
    else:
        told = f"{token} {chat.decode([token])!r}, {count} at the start: {who}"
        yield Finding(title, "ok" if count == 1 else "problem", told, facts=facts)


def system(subject: Subject) -> Iterator[Finding]:
    """The system prompt of a conversation that has none of its own."""
    chat = subject.chat
    facts = {
        "source": chat.system.source, "text": chat.system.text, "injected": chat.injected_system
    }  # fmt: skip
    title = f"system prompt of {subject.name}"
    if chat.system.text is not None:
        yield Finding(title, "ok", f"{chat.system.source}: {chat.system.text!r}", facts=facts)
    elif chat.injected_system:
        told = f"none is set, and the template adds {chat.injected_system!r}"
        yield Finding(title, "note", told, facts=facts)
    else:
        yield Finding(title, "ok", "none is set, and the template adds none", facts=facts)


CHECKS: dict[str, Callable[[Subject], Iterator[Finding]]] = {
    "template": template,
    "shipped template": shipped,
    "segments": segments,
    "stop tokens": stops,
    "BOS": bos,
    "system prompt": system,
}

"""Judges that ask a chat model with a published prompt and parse its reply.

This file sends the requests and turns failures into codes; the prompt's layout and its parser stand
in the judges' own files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from judgezoo.backends import Backend, ChatReply, ChatRequest, backend_from_spec, backend_identity
from judgezoo.base import Judge, JudgeOptions
from judgezoo.conversation import Row
from judgezoo.deviation import same_model
from judgezoo.errors import InvalidOption, UnparsableReply

__all__ = ["PromptedJudge", "PromptedOptions"]

_CHUNK = 64
Messages = list[dict[str, str]]


class PromptedOptions(JudgeOptions):
    """Options of all prompted judges.

    Attributes:
        max_tokens: limit on the judge's reply; None takes the published one.
        temperature: of the judge; the published one is 0 everywhere.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0)


class PromptedJudge(Judge):
    """Base of the prompted judges."""

    Options: ClassVar[type[JudgeOptions]] = PromptedOptions
    max_tokens: ClassVar[int]
    top_p: ClassVar[float | None] = None

    def messages(self, row: Row) -> Messages:
        """Return the messages that ask about a row."""
        raise NotImplementedError

    def parse(self, text: str, row: Row) -> Mapping[str, Any]:
        """Return the result of a reply.

        Raises:
            UnparsableReply: the reply is not in the published format.
        """
        raise NotImplementedError

    def fallback(self, row: Row) -> Mapping[str, Any]:
        """Return what the published code gives for a reply that it cannot parse."""
        raise NotImplementedError

    def without_asking(self, row: Row) -> Mapping[str, Any] | None:
        """Return the result of a row that the published code decides without a call, or None."""
        return None

    def prefill(self) -> str | None:
        """Return the text that the judge's reply starts with, or None."""
        return None

    def token_limit(self) -> int:
        """Return the limit on the reply."""
        return int(self.options.max_tokens or self.max_tokens)

    def _resolve_backend(self, backend: Backend | str | None) -> Backend:
        if backend is None:
            raise InvalidOption(
                f"judge {self.info.name!r} asks a chat model; give one, for example "
                f"backend='openai:{self.info.baseline[0]}' or an object of judgezoo.backends"
            )
        resolved = backend_from_spec(backend) if isinstance(backend, str) else backend
        if not callable(getattr(resolved, "generate", None)):
            raise InvalidOption(
                f"judge {self.info.name!r} needs a backend with generate(requests), "
                f"got {type(resolved).__name__}"
            )
        return resolved

    def _find_deviations(self) -> list[str]:
        found = super()._find_deviations()
        model = str(backend_identity(self._chat()).get("model", "unknown"))
        if not same_model(model, self.info.baseline):
            found.append(f"the paper's judge model is {self.info.baseline[0]}, this one is {model}")
        if self.options.max_tokens not in (None, self.max_tokens):
            limit = self.options.max_tokens
            found.append(f"the paper's token limit is {self.max_tokens}, this one is {limit}")
        if self.options.temperature != 0:
            found.append(f"the paper's temperature is 0, this one is {self.options.temperature}")
        if not self._supports("temperature"):
            found.append("the judge model takes no temperature, the paper's is 0")
        if self.top_p is not None and not self._supports("top_p"):
            found.append(f"the judge model takes no top_p, the paper's is {self.top_p}")
        return found

    def _chat(self) -> Any:
        """Return the backend, which the constructor has checked."""
        return self.backend

    def _supports(self, parameter: str) -> bool:
        """Tell whether the backend honors a parameter; one that says nothing is believed to."""
        capabilities = getattr(self.backend, "capabilities", None)
        return bool(getattr(capabilities, parameter, True))

    def _score(self, rows: Sequence[Row]) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        asked = []
        for row in rows:
            decided = self.without_asking(row)
            if decided is None:
                asked.append(row)
            else:
                yield row, decided
        for start in range(0, len(asked), _CHUNK):
            chunk = asked[start : start + _CHUNK]
            replies = self._chat().generate([self._request(row) for row in chunk])
            for row, reply in zip(chunk, replies, strict=True):
                yield row, self._read(reply, row)

    def _request(self, row: Row) -> ChatRequest:
        return ChatRequest(
            messages=tuple(self.messages(row)),
            max_tokens=self.token_limit(),
            temperature=self.options.temperature if self._supports("temperature") else None,
            top_p=self.top_p if self._supports("top_p") else None,
            prefill=self.prefill(),
            key=f"{self.info.name}/{row.index}",
        )

    def _read(self, reply: ChatReply, row: Row) -> Mapping[str, Any]:
        """Turn a reply into a result; a failed or unreadable one into a code."""
        if reply.status != "ok":
            too_long = reply.status == "context_overflow"
            return {"error": "prompt_too_long" if too_long else "provider_error"}
        text = reply.text
        try:
            return {**self.parse(text, row), "raw": text}
        except UnparsableReply as error:
            if self.options.on_unparsable == "raise":
                raise UnparsableReply(
                    f"judge {self.info.name!r}, row {row.index}: {error}"
                ) from None
            if self.options.on_unparsable == "official":
                return {**self.fallback(row), "raw": text}
            return {"error": "unparsable" if text.strip() else "empty", "raw": text}

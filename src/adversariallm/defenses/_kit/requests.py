"""What arrives at a defense that reads text, and the ways it may be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from adversariallm.core.errors import NeedsError
from adversariallm.core.rng import Name, Rng
from adversariallm.core.types import Conversation, ModelInput


@dataclass(frozen=True)
class Request:
    """One question to the model.

    Attributes:
        conversation: what is asked. A defense reads text: exact ids that came with it are dropped,
            and the model encodes the text again.
        prefill: what the assistant has already said.
        rng: the stream of the answer.
        ids: exact ids to answer, for a defense that chooses them itself; the conversation is then
            only what later defenses and records read.
    """

    conversation: Conversation
    rng: Rng
    prefill: str = ""
    ids: tuple[int, ...] | None = None

    @classmethod
    def read(cls, item: Conversation | ModelInput, rng: Rng, *, who: str) -> Request:
        """The request that an input stands for.

        Raises:
            NeedsError: the input is embeddings, which have no text.
        """
        if isinstance(item, Conversation):
            return cls(item, rng)
        if item.conversation is None:
            raise NeedsError(
                f"defense {who!r} reads text, given embeddings: no text produces them. Attack the "
                "model without it, or with an attack whose inputs are text"
            )
        return cls(item.conversation, rng, item.prefill)

    @property
    def prompt(self) -> str:
        """Content of the last user message."""
        return self.conversation[self.conversation.last_user].content

    def with_prompt(self, text: str) -> Request:
        """The request with another last user message."""
        changed = self.conversation.with_content(self.conversation.last_user, text)
        return replace(self, conversation=changed, ids=None)

    def stream(self, *names: Name) -> Request:
        """The same question, answered from a stream of its own."""
        return replace(self, rng=self.rng.child(*names))

    @property
    def input(self) -> ModelInput:
        """What is sent to the model."""
        return ModelInput(self.conversation, self.ids, prefill=self.prefill)


T = TypeVar("T")


def split(rows: Sequence[T], counts: Sequence[int]) -> list[list[T]]:
    """Consecutive groups of the given sizes: undoes flattening copies into one call."""
    groups, at = [], 0
    for count in counts:
        groups.append(list(rows[at : at + count]))
        at += count
    return groups

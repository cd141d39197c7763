"""Retokenization: the same text reaches the model in other, smaller tokens.

Source: Jain et al. 2023, arXiv 2309.00614, section 4.2, with the BPE dropout of Provilkov et al.
2020, arXiv 1910.13267. Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import ChatModel, DefenseInfo, Needs, Supplies, Wanted
from adversariallm.core.types import Reply
from adversariallm.defenses._kit.defended import Ask, Defended
from adversariallm.defenses._kit.replies import marked
from adversariallm.defenses._kit.requests import Request
from adversariallm.tokenization.bpe import BytePairs

INFO = DefenseInfo(
    name="retokenize",
    summary="the text of user messages reaches the model in other, smaller tokens (BPE dropout)",
    source="Jain et al. 2023, arXiv 2309.00614, section 4.2; Provilkov et al. 2020, 1910.13267",
    reference_code=None,
    passes=Needs.TEXT,
    rewrites=True,
    deviations=(
        "all user messages of a conversation are cut anew, never the template around them",
    ),
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    drop: float = Field(
        0.4, gt=0, le=1, description="probability that a merge is left out when it could be made"
    )

    def wanted(self) -> Wanted:
        """Exact ids, right inside."""
        return Wanted(model=Needs.TOKENS, inside=Needs.TOKENS)


class Retokenized(Defended):
    """The model behind other tokens of the same text."""

    config: Config

    @cached_property
    def _pairs(self) -> BytePairs:
        return BytePairs(self.model.chat.codec)  # type: ignore[attr-defined]

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """The model's answers to exact ids that read as the requests."""
        sent, counts = [], []
        for request in requests:
            ids, count = self._ids(request)
            sent.append(replace(request, ids=ids))
            counts.append(count)
        return [
            marked(reply, INFO.name, tokens=count, tokens_before=before)
            for reply, (count, before) in zip(ask(sent), counts, strict=True)
        ]

    def _ids(self, request: Request) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Ids of the conversation with its user messages cut anew; their number and the usual."""
        chat = self.model.chat  # type: ignore[attr-defined]
        rendered = chat.render(request.conversation, prefill=request.prefill)
        stretches = [(s.start, s.end) for s in rendered.spans if s.name == "user"]
        draw = request.rng.child(INFO.name).python()
        ids = self._pairs.encode(rendered.text, stretches, self.config.drop, draw)
        full = (*chat.missing_bos(ids), *ids)
        return full, (len(full), len(chat.encode_text(rendered.text)))


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind other tokens.

    Raises:
        ModelError: its tokenizer has no merges that could be left out.
    """
    found = Retokenized(model, INFO, config)
    found._pairs  # noqa: B018  -- a tokenizer without merges is refused before the first question
    return found

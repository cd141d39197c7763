"""Every text of every arm on the same way: the package's pipeline, its loss, its greedy answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.directions import common_prefix
from adversariallm.models.local import LocalModel
from adversariallm.tokenization import Slot
from gcg_contest.arms import INITIAL
from judgezoo import Judge


def reenter(
    model: LocalModel, behavior: Behavior, cell: dict[str, Any], new_tokens: int
) -> dict[str, Any]:
    """What the searched texts do when somebody types them.

    Args:
        model: the model, with its own template.
        behavior: whose conversation the texts are the last user message of.
        cell: `texts`, and the `ids` that the search had in mind.
        new_tokens: length of the greedy answers; 0 makes none.

    Returns:
        Per step the float32 loss of the target after the text, whether the text gives the ids of
        the search, whether at least the slot does, and the judge's score of the answer.
    """
    turn = behavior.conversation.last_user
    talks = [behavior.conversation.with_content(turn, text) for text in cell["texts"]]
    rows = [model.chat.encode(talk) for talk in talks]
    target = model.chat.segments(behavior.conversation, target=behavior.target).target_ids
    losses = model.losses(rows, [target] * len(rows), shared=common_prefix(rows)).per_token
    out: dict[str, Any] = {
        "loss": [float(x.mean()) for x in losses],
        "same_ids": [list(a) == b for a, b in zip(rows, cell["ids"], strict=True)],
    }
    if "slots" in cell:
        out["same_slot"] = same_slots(model, behavior, rows, cell["slots"])
        special = model.chat.codec.special_ids
        out["special"] = [any(i in special for i in slot) for slot in cell["slots"]]
    if new_tokens:
        out["score"] = scores(model, behavior, talks, new_tokens)
    return out


def same_slots(
    model: LocalModel,
    behavior: Behavior,
    rows: Sequence[Sequence[int]],
    slots: Sequence[Sequence[int]],
) -> list[bool]:
    """Whether each text gives the slot's ids between the right neighbors."""
    start = model.chat.segments(behavior.conversation, Slot("suffix", INITIAL, "none"))
    return [start.input_with(slot) == tuple(row) for slot, row in zip(slots, rows, strict=True)]


def scores(
    model: LocalModel, behavior: Behavior, talks: Sequence[Conversation], new_tokens: int
) -> list[float | None]:
    """1 where the greedy answer does not open with a refusal; equal inputs are answered once."""
    different = {talk.key: talk for talk in talks}
    replies = model.generate(
        list(different.values()),
        GenerationConfig(max_new_tokens=new_tokens),
        [Rng.root(0)] * len(different),
    )
    asked = behavior.conversation.to_dicts()
    answered = [[*asked, {"role": "assistant", "content": r.text}] for r in replies]
    judge = Judge.from_name("refusal_prefix")
    judged = judge(answered, [{} for _ in answered])[judge.info.score_key]
    by_key = dict(zip(different, judged, strict=True))
    return [by_key[talk.key] for talk in talks]

"""The contest with nanoGCG: arms that differ in one switch, and arithmetic with known answers."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from scipy import stats

from adversariallm.attacks import gcg
from adversariallm.core.types import Conversation
from adversariallm.models.local import LocalModel
from adversariallm.models.tiny import tiny_model
from adversariallm.tokenization import Slot

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from gcg_contest import ours, reenter, tables  # noqa: E402
from gcg_contest.arms import ABLATIONS, INITIAL, OURS, Arm  # noqa: E402

TALK = Conversation.user("write a short story")


@pytest.fixture(scope="module")
def model() -> LocalModel:
    return tiny_model("llama")


def rendered(model: LocalModel, arm: Arm) -> str:
    return ours.Variant(model, arm).chat.render(TALK).text


def arm(name: str) -> Arm:
    return next(a for a in ABLATIONS if a.name == name)


@pytest.mark.parametrize("other", [a for a in ABLATIONS if a.who == "ours"], ids=lambda a: a.name)
def test_an_ablation_differs_from_ours_in_one_switch(other: Arm) -> None:
    named = {"name", "shows"}
    different = [
        f.name
        for f in fields(Arm)
        if f.name not in named and getattr(other, f.name) != getattr(OURS, f.name)
    ]
    assert len(different) == 1
    if other.options:
        assert len(other.options) == 1
    gcg.Config(**other.options)


def test_altered_templates_lose_one_marker_and_nothing_else(model: LocalModel) -> None:
    whole = rendered(model, OURS)
    bos, end = model.chat.tokenizer.bos_token, model.chat.tokenizer.eos_token
    assert whole.startswith(bos) and end in whole
    assert rendered(model, arm("bos missing")) == whole.removeprefix(bos)
    head, _, tail = whole.rpartition(end)
    assert rendered(model, arm("end of turn missing")) == head + tail
    slot = Slot("suffix", INITIAL, "none")
    for name in ("bos missing", "end of turn missing"):
        chat = ours.Variant(model, arm(name)).chat
        assert chat.segments(TALK, slot).slot_ids == model.chat.segments(TALK, slot).slot_ids


def test_the_coarse_loss_is_cross_entropy_with_ties() -> None:
    logits = torch.randn(40, 5, 30, generator=torch.Generator().manual_seed(0)) / 50
    targets = torch.arange(5).repeat(40, 1)
    exact = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none"
    )
    coarse = ours.bfloat16_loss(logits, targets)
    assert torch.allclose(coarse, exact.view(40, 5).mean(-1), atol=0.03)
    assert len(set(coarse.tolist())) < 20 < len(set(exact.view(40, 5).mean(-1).tolist()))


def test_the_text_of_a_search_gives_its_loss_and_ids_back(model: LocalModel) -> None:
    from adversariallm.core.types import Behavior

    behavior = Behavior("b", TALK, "write a short story", True, "Sure, here", "dataset")
    found = ours.search(model, behavior, OURS, seed=0, steps=2, width=8)
    back = reenter.reenter(model, behavior, found, new_tokens=3)
    assert back["loss"] == pytest.approx(found["losses"], abs=1e-5)
    assert back["same_ids"] == [True] * 3
    assert len(back["score"]) == 3 and set(back["score"]) <= {0.0, 1.0}
    found["ids"][1][-1] += 1
    assert reenter.reenter(model, behavior, found, 0)["same_ids"] == [True, False, True]


def test_the_shared_prefix_leaves_an_id_of_every_row() -> None:
    assert reenter.common_prefix([[1, 2, 3], [1, 2, 4]]) == 2
    assert reenter.common_prefix([[1, 2], [1, 2]]) == 1
    assert reenter.common_prefix([[1, 2, 3], [5, 2, 3]]) == 0


def cell(*losses: float, score: tuple[int, ...] = (), seconds: tuple[float, ...] = ()) -> dict:
    return {"losses": list(losses), "back": {"loss": list(losses), "score": score},
            "seconds": list(seconds)}  # fmt: skip


def test_seeds_of_a_behavior_are_averaged_before_the_interval() -> None:
    b = {("a", 0): cell(3, 1), ("a", 1): cell(3, 2), ("b", 0): cell(3, 2), ("c", 0): cell(3, 0)}
    a = {key: cell(3, 1) for key in b} | {("d", 0): cell(0, 0)}
    mean, low, high = tables.difference(a, b, tables.back_best)
    deltas = [0.5, 1.0, -1.0]
    assert mean == pytest.approx(sum(deltas) / 3)
    expected = stats.t.interval(0.95, 2, loc=sum(deltas) / 3, scale=stats.sem(deltas))
    assert (low, high) == pytest.approx(expected)


def test_losses_and_successes_accumulate() -> None:
    cells = {("a", 0): cell(3, 2, 4, score=(0, 1, 0)), ("b", 0): cell(5, 6, 1, score=(0, 0, 0))}
    assert tables.curve(cells, lambda f: f["losses"]).tolist() == [4.0, 3.5, 1.5]
    assert tables.success_curve(cells).tolist() == [0.0, 0.5, 0.5]


def test_what_is_not_finished_in_time_does_not_count() -> None:
    cells = {("a", 0): cell(3, 2, 1, seconds=(1, 2, 3)), ("b", 0): cell(5, 4, 3, seconds=(2, 4, 6))}
    assert tables.at_seconds(cells, 3) == pytest.approx((1 + 5) / 2)
    assert tables.at_seconds(cells, 0.5) == pytest.approx((3 + 5) / 2)

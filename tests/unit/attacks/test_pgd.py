"""PGD and PGD-Discrete: constraints at every recorded step, gradients, restarts, schedules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import pgd, pgd_discrete
from adversariallm.attacks._kit import projections
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, resources, run, spec  # noqa: E402


@pytest.fixture(scope="module")
def tiny() -> Any:
    return tiny_model("gemma2")  # scaled embeddings, tied head, soft-capped logits


def attack(model: Any, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    task = spec("pgd", model, [behaviors()[0]], options={"num_steps": 6, **options})
    return execute(task, resources("pgd", model), MemoryLog())


def slot_rows(model: Any, tensors: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    return tensors[f"step.{step}.0"]


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
@pytest.mark.parametrize("over", ["token", "slot"])
@pytest.mark.parametrize("optimizer", ["sign", "normalized", "adam"])
def test_every_iterate_is_in_the_ball_restarts_included(
    tiny: Any, norm: projections.Norm, over: str, optimizer: str
) -> None:
    document, tensors = attack(
        tiny,
        projection=norm,
        norm_over=over,
        optimizer=optimizer,
        epsilon=0.05,
        step_size=0.5,
        restart_every=3,
        restart_epsilon=9.0,
    )
    steps = document.runs[0].steps
    start = tensors["step.0.0"]
    radius = 0.05 * steps[0].note["scale"]
    first = len(steps[0].note["before"])
    last = len(start) - len(steps[0].note["after"])
    for step in steps:
        rows = tensors[f"step.{step.step}.0"]
        assert torch.equal(rows[:first], start[:first])
        assert torch.equal(rows[last:], start[last:])
        change = (rows - start)[first:last]
        assert (projections.norm_of(change, norm, whole=over == "slot") <= radius * 1.0001).all()
    assert [s.step for s in steps if s.note["restart"]] == [3, 6]


def test_the_recorded_loss_is_that_of_the_recorded_embeddings(tiny: Any) -> None:
    document, tensors = attack(tiny)
    target = tiny.chat.segments(
        behaviors()[0].conversation, target=behaviors()[0].target
    ).target_ids
    for step in document.runs[0].steps:
        again = tiny.soft_losses([tensors[f"step.{step.step}.0"]], [target]).loss[0]
        assert step.loss == pytest.approx(float(again), abs=1e-5)
        assert step.model_input is None and step.model_input_tokens is None
        assert step.model_input_embeddings == f"tensors.safetensors#step.{step.step}.0"


def test_step_zero_is_the_text_itself(tiny: Any) -> None:
    document, _ = attack(tiny)
    plain = run(
        "random_search", tiny, [behaviors()[0]], options={"initial": "! ! !", "num_steps": 0}
    )
    assert document.runs[0].steps[0].loss == pytest.approx(plain.runs[0].steps[0].loss, abs=1e-5)


def test_epsilon_zero_and_step_zero_stay_where_they_are(tiny: Any) -> None:
    for options in ({"projection": "l2", "epsilon": 0.0}, {"step_size": 0.0}):
        document, tensors = attack(tiny, **options)
        losses = [s.loss for s in document.runs[0].steps]
        assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-5)
        assert torch.allclose(tensors["step.6.0"], tensors["step.0.0"])


def test_unconstrained_descent_lowers_the_loss(tiny: Any) -> None:
    document, _ = attack(tiny, num_steps=30, optimizer="adam", step_size=0.1)
    losses = [s.loss for s in document.runs[0].steps]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("optimizer", ["sign", "normalized", "adam"])
def test_one_hot_rows_stay_on_the_simplex(optimizer: str) -> None:
    planted = PlantedModel()
    task = spec(
        "pgd",
        planted,
        [planted.behavior()],
        options={
            "space": "one_hot",
            "projection": "simplex",
            "optimizer": optimizer,
            "step_size": 0.3,
            "num_steps": 12,
            "restart_every": 5,
            "initial": "! ! ! ! ! !",
        },
    )
    document, tensors = execute(task, resources("pgd", planted), MemoryLog())
    for step in document.runs[0].steps:
        rows = tensors[f"step.{step.step}.0"]  # the planted embedding of an id is its unit vector
        assert torch.allclose(rows.sum(-1), torch.ones(len(rows)), atol=1e-5)
        assert (rows >= -1e-7).all()
    assert min(s.loss for s in document.runs[0].steps) < document.runs[0].steps[0].loss


def test_a_loss_that_is_not_finite_is_flagged_and_nothing_moves(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pgd.Attack._evaluate

    def broken(self: Any, problem: Any, ties: Any, point: Any, *, last: bool) -> None:
        original(self, problem, ties, point, last=last)
        point.loss, point.finite = float("nan"), False

    monkeypatch.setattr(pgd.Attack, "_evaluate", broken)
    document, tensors = attack(tiny, num_steps=2)
    assert document.status == "done"
    assert [s.flags for s in document.runs[0].steps] == [["loss_not_finite"]] * 3
    assert all(s.loss is None for s in document.runs[0].steps)
    assert torch.equal(tensors["step.2.0"], tensors["step.0.0"])


def test_simplex_outside_one_hot_space_is_refused() -> None:
    with pytest.raises(ValueError, match="projection=simplex needs space=one_hot"):
        pgd.Config(projection="simplex")


@pytest.mark.parametrize(
    ("gap", "value"), [(0, 0), (-1, 0), (0.05, 0.0034), (0.0999, 0.0154), (0.1, 1), (5, 1)]
)
def test_the_gap_scale_is_the_published_curve(gap: float, value: float) -> None:
    assert pgd_discrete.gap_scale(gap) == pytest.approx(value, abs=5e-5)


def test_the_rate_is_constant_then_cycles_between_base_and_peak() -> None:
    rates = [pgd_discrete.Attack(pgd_discrete.Config())._rate(k) for k in range(1, 282)]
    assert rates[:100] == [0.11] * 100
    assert rates[100] == pytest.approx(0.11)
    assert rates[130] == pytest.approx((0.11 + 0.325) / 2)
    assert max(rates) == pytest.approx(0.325, abs=1e-3)
    assert rates[160] == pytest.approx(0.11)


def test_pgd_discrete_finds_the_planted_words() -> None:
    planted = PlantedModel()
    document = run(
        "pgd_discrete",
        planted,
        [planted.behavior()],
        options={
            "num_steps": 60,
            "prefix_tokens": 0,
            "suffix_tokens": 8,
            "anneal_steps": 20,
            # the planted gradient is zero almost everywhere, where Adam would follow these alone
            "neighbor_weight": 0.0,
            "entropy_weight": 0.0,
        },
    )
    losses = [s.loss for s in document.runs[0].steps]
    assert min(losses) == pytest.approx(planted.best_loss, abs=1e-4)


def test_pgd_discrete_leaves_everything_but_its_slots_alone(tiny: Any) -> None:
    document = run(
        "pgd_discrete",
        tiny,
        [behaviors()[1]],
        options={"num_steps": 3, "prefix_tokens": 3, "suffix_tokens": 3},
    )
    clean = behaviors()[1].conversation
    for step in document.runs[0].steps:
        assert step.model_input[0] == clean.to_dicts()[0]
        assert clean[1].content in step.model_input[1]["content"]
        assert 0 <= step.note.get("factor", 0.0) <= 0.4

"""PGD and PGD-Discrete: constraints at every recorded step, gradients, restarts, schedules."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import pgd, pgd_discrete
from adversariallm.attacks._kit import projections
from adversariallm.attacks._kit.adam import adam
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.attacks._kit.steepest import steepest
from adversariallm.core.rng import Rng
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.tokenization import Slot

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


def test_rows_without_a_gradient_stay() -> None:
    point = pgd._Point(torch.ones(2, 3), 1.0, torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]]))
    for optimizer in ("sign", "normalized", "adam"):
        direction = pgd.Attack(pgd.Config(optimizer=optimizer))._direction(point)
        assert torch.equal(direction[0], torch.zeros(3))
        assert direction[1].isfinite().all() and direction[1].norm() > 0


@pytest.mark.parametrize("space", ["embedding", "one_hot"])
@pytest.mark.parametrize("optimizer", ["sign", "normalized", "adam"])
def test_a_gradient_that_is_zero_everywhere_changes_nothing(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, space: str, optimizer: str
) -> None:
    original = tiny.gradient

    def flat(*args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        return replace(found, slot=torch.zeros_like(found.slot))

    monkeypatch.setattr(tiny, "gradient", flat)
    document, tensors = attack(tiny, num_steps=3, space=space, optimizer=optimizer)
    assert document.status == "done"
    assert torch.equal(tensors["step.3.0"], tensors["step.0.0"])
    assert not any(step.flags for step in document.runs[0].steps)


def states(name: str, model: Any, **options: Any) -> list[dict[str, torch.Tensor]]:
    """What each step stored to go on from, by tensor name."""
    log = MemoryLog()
    execute(spec(name, model, [behaviors()[0]], options=options), resources(name, model), log)
    return [entry.tensors() for entry in log.entries if entry.kind == "step"]


@pytest.mark.parametrize("space", ["embedding", "one_hot"])
def test_every_step_has_a_fresh_gradient(tiny: Any, space: str) -> None:
    found = states("pgd", tiny, num_steps=4, step_size=0.0, space=space)
    first = found[0]["state.gradient"]
    assert float(first.norm()) > 0
    for step in found[1:-1]:
        assert torch.equal(step["state.gradient"], first)


def test_a_given_scale_is_the_unit_of_lengths(tiny: Any) -> None:
    options = {"num_steps": 1, "step_unit": "scale", "step_size": 0.5, "projection": "linf"}
    document, tensors = attack(tiny, embedding_scale=0.25, epsilon=0.3, **options)
    assert document.runs[0].steps[0].note["scale"] == 0.25
    change = (tensors["step.1.0"] - tensors["step.0.0"]).abs().max()
    assert float(change) == pytest.approx(0.3 * 0.25, rel=1e-5)
    own, _ = attack(tiny, **options)
    norms = tiny.embedding_matrix().abs().amax(-1)
    assert own.runs[0].steps[0].note["scale"] == pytest.approx(float(norms.mean()))


@pytest.mark.parametrize("name", ["pgd", "pgd_discrete"])
def test_what_is_optimized_is_float32_whatever_the_model_is(name: str) -> None:
    low = tiny_model("llama", dtype="bfloat16")
    for step in states(name, low, num_steps=2, optimizer="adam"):
        assert {t.dtype for k, t in step.items() if k.startswith("state.")} == {torch.float32}


def test_impatience_takes_up_the_best_text_with_a_fresh_optimizer(tiny: Any) -> None:
    options = {"num_steps": 4, "prefix_tokens": 0, "suffix_tokens": 4, "patience": 1,
               "learning_rate": 1e-6, "peak_rate": 1e-6}  # fmt: skip
    document = run("pgd_discrete", tiny, [behaviors()[0]], options=options)
    restarts = [s.note["restart"] for s in document.runs[0].steps]
    assert restarts == [False, False, True, True, True]
    found = states("pgd_discrete", tiny, **options)
    for restarted, step in zip(restarts, found, strict=True):
        rows = step["state.x"]
        one_hot = torch.equal(rows, rows.round()) and bool((rows.sum(-1) == 1).all())
        assert one_hot is restarted
        if restarted:
            assert "state.first" not in step and "state.second" not in step


def test_steepest_steps_keep_how_tokens_compare() -> None:
    gradient = torch.tensor([[3.0, 1.0, 2.0, 0.0], [5.0, 5.0, 5.0, 0.0], [0.5, 0.0, -0.5, 0.0]])
    allowed = torch.tensor([True, True, True, False])
    direction, moments = steepest(gradient, allowed, {})
    expected = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0] * 4, [1.0, 0.0, -1.0, 0.0]])
    assert torch.allclose(direction, expected, atol=1e-6)
    assert torch.equal(steepest(torch.zeros(2, 4), allowed, {})[0], torch.zeros(2, 4))
    again, _ = steepest(torch.zeros_like(gradient), allowed, moments)
    assert torch.allclose(again, direction, atol=1e-6)  # the average keeps its shape
    signs, _ = adam(gradient, {}, 1)
    assert torch.allclose(signs[0, :3], torch.ones(3))  # Adam's first step cannot tell them apart


def test_an_interval_longer_than_the_run_never_restarts(tiny: Any) -> None:
    document, tensors = attack(tiny, restart_every=7, restart_epsilon=5.0)
    never, same = attack(tiny)
    assert [s.note["restart"] for s in document.runs[0].steps] == [False] * 7
    assert [s.loss for s in document.runs[0].steps] == [s.loss for s in never.runs[0].steps]
    assert torch.equal(tensors["step.6.0"], same["step.6.0"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_discrete_run_goes_on_behind_a_gradient_that_is_not_finite(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    original, calls = tiny.gradient, []

    def broken(*args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        calls.append(0)
        if len(calls) != 2:
            return found
        return replace(found, loss=value, finite=False, slot=found.slot * value)

    monkeypatch.setattr(tiny, "gradient", broken)
    options = {"num_steps": 4, "prefix_tokens": 0, "suffix_tokens": 4}
    steps = run("pgd_discrete", tiny, [behaviors()[0]], options=options).runs[0].steps
    assert [s.flags for s in steps] == [[], ["gradient_not_finite"], [], [], []]
    assert [s.note["restart"] for s in steps] == [False, False, True, False, False]
    assert steps[1].note["relaxed_loss"] is None
    assert all(math.isfinite(s.loss) for s in steps)
    best = min(steps[:2], key=lambda s: s.loss)
    assert steps[2].model_input == best.model_input


def plain_rows(problem: SlotProblem, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and all but the last target token as float64 rows, the slot's free."""
    model = problem.model
    leaf = vectors.double().requires_grad_(True)
    ids = [*problem.segments.input_ids, *problem.target[:-1]]
    slot = torch.tensor(problem.segments.slot_positions)
    return model.embed(ids).double().index_copy(0, slot, leaf), leaf


MODELS = [("llama", False), ("gemma2", True), ("gemma3_text", True), ("qwen3", False),
          ("phi3", True)]  # fmt: skip


@pytest.mark.parametrize(("kind", "tied"), MODELS)
@pytest.mark.parametrize("space", ["embedding", "one_hot"])
def test_the_gradient_is_that_of_plain_autograd_in_float64(
    kind: Any, tied: bool, space: str
) -> None:
    model = tiny_model(kind, tied=tied)
    assert model.engine.forward.config.tie_word_embeddings is tied
    problem = SlotProblem.build(
        model, behaviors()[1], Slot("suffix", "! ! !", "space"), filter="none"
    )
    attack = pgd.Attack(pgd.Config(space=space))
    x = attack._origin(problem)
    x = x + 0.1 * torch.randn(x.shape, generator=Rng.root(3).torch())
    point = pgd._Point(x, 0.0)
    attack._evaluate(problem, [], point, last=False)

    plain = copy.deepcopy(model.engine.forward.model).double()
    vectors = attack._vectors(problem, x)
    rows, leaf = plain_rows(problem, vectors)
    logits = plain(inputs_embeds=rows[None]).logits[0, -len(problem.target) :]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(problem.target))
    (expected,) = torch.autograd.grad(loss, leaf)
    if space == "one_hot":
        matrix = plain.get_input_embeddings()(torch.arange(model.num_embeddings)).detach()
        expected = (expected @ matrix.T).masked_fill(~problem.allowed, 0.0)
    assert point.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert point.gradient is not None
    scale = float(expected.abs().max())
    assert torch.allclose(point.gradient.double(), expected, atol=1e-5 * scale, rtol=1e-4)


@pytest.mark.parametrize(("following", "row"), [(0.7, 0.0), (0.0, 0.5), (0.3, 0.4)])
def test_the_control_losses_have_the_slope_of_plain_autograd(following: float, row: float) -> None:
    model = tiny_model("gemma2", tied=True)
    problem = SlotProblem.build(
        model, behaviors()[1], Slot("suffix", "! ! !", "space"), filter="none"
    )
    n, width = len(problem.start), model.num_embeddings
    x = torch.rand(n, width, generator=Rng.root(2).torch())
    x = x / x.sum(-1, keepdim=True)
    config = pgd_discrete.Config(control_next_weight=following, control_row_weight=row)
    vectors = x @ model.embedding_matrix()
    found = pgd_discrete.Attack(config)._control(problem, x, vectors)

    plain = copy.deepcopy(model.engine.forward.model).double()
    matrix = plain.get_input_embeddings()(torch.arange(width)).detach()
    leaf = x.double().requires_grad_(True)
    slot = list(problem.segments.slot_positions)
    rows = model.embed(problem.segments.input_ids).double()
    rows = rows.index_copy(0, torch.tensor(slot), leaf @ matrix)
    scores = plain(inputs_embeds=rows[None]).logits[0, [p - 1 for p in slot]].log_softmax(-1)
    loss = -following * (leaf.detach() * scores).sum(-1).mean()
    loss = loss - row * (leaf * scores.detach()).sum(-1).mean()
    (expected,) = torch.autograd.grad(loss, leaf)
    scale = float(expected.abs().max())
    assert torch.allclose(found.double(), expected, atol=1e-5 * scale, rtol=1e-3)


def test_control_losses_make_the_free_tokens_more_likely(tiny: Any) -> None:
    options = {"num_steps": 12, "prefix_tokens": 0, "suffix_tokens": 6, "target_weight": 0.0,
               "neighbor_weight": 0.0, "entropy_weight": 0.0}  # fmt: skip
    found = {}
    for weight in (0.0, 1.0):
        chosen = {**options, "control_row_weight": weight}
        steps = run("pgd_discrete", tiny, [behaviors()[0]], options=chosen).runs[0].steps
        ids = steps[-1].model_input_tokens
        start = len(tiny.chat.encode(behaviors()[0].conversation)) - 2
        found[weight] = float(tiny.losses([ids[:start]], [ids[start:]]).loss[0])
    assert found[1.0] < found[0.0]


def test_the_gap_compares_losses_of_equal_weights(tiny: Any) -> None:
    """One-hot rows that read back as themselves are no relaxation: the gap is 0."""
    options = {"num_steps": 0, "prefix_tokens": 0, "suffix_tokens": 4, "initialization": "text"}
    (step,) = run("pgd_discrete", tiny, [behaviors()[0]], options=options).runs[0].steps
    assert step.note["unchanged"]
    assert step.note["gap"] == pytest.approx(0.0, abs=1e-5)
    assert step.note["relaxed_loss"] != pytest.approx(step.loss, rel=1e-3)


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

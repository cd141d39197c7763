"""GCG on the planted problem, whose best suffix and losses are known in closed form."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adversariallm.attacks import gcg
from adversariallm.core.budget import Ledgers
from adversariallm.models.local import LocalModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_parts

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, run  # noqa: E402

WORDS = {"initial": "! ! ! ! ! !", "search_width": 64, "topk": 64}


@pytest.fixture(scope="module")
def planted() -> PlantedModel:
    return PlantedModel()


def losses(document) -> list[float]:
    return [s.loss for s in document.runs[0].steps]


def test_it_finds_the_planted_optimum(planted: PlantedModel) -> None:
    document = run("gcg", planted, [planted.behavior()], options={**WORDS, "num_steps": 12})
    assert min(losses(document)) == pytest.approx(planted.best_loss, abs=1e-5)
    best = document.runs[0].steps[losses(document).index(min(losses(document)))]
    assert planted.score(best.model_input_tokens) == 1.0
    assert best.model_completions[0].startswith("Sure")


def test_it_beats_random_search_at_equal_queries() -> None:
    """The separating test of DESIGN 12.17: same seeds, same number of sequences sent."""
    planted = PlantedModel(secrets=8)
    initial = "! ! ! ! ! ! ! ! ! !"
    for seed in range(5):
        with_gradient = run(
            "gcg",
            planted,
            [planted.behavior()],
            seed=seed,
            options={"initial": initial, "search_width": 8, "topk": 16, "num_steps": 8},
        )
        queries = Ledgers.from_dict(with_gradient.ledgers).total("optimization").queries
        random = run(
            "random_search",
            planted,
            [planted.behavior()],
            seed=seed,
            options={
                "initial": initial,
                "num_candidates": 8,
                "radius": 1,
                "num_steps": queries // 8,
            },
        )
        assert min(losses(with_gradient)) < min(losses(random))


def test_early_stop(planted: PlantedModel) -> None:
    options = {**WORDS, "num_steps": 30}
    whole = run("gcg", planted, [planted.behavior()], options=options)
    stopped = run("gcg", planted, [planted.behavior()], options={**options, "early_stop": True})
    steps = stopped.runs[0].steps
    assert len(steps) < len(whole.runs[0].steps)
    assert [s.model_input for s in steps] == [
        s.model_input for s in whole.runs[0].steps[: len(steps)]
    ]
    target = planted.chat.segments(
        planted.behavior().conversation, target=planted.answer
    ).target_ids
    matches = [bool(planted.losses([s.model_input_tokens], [target]).matches[0]) for s in steps]
    assert matches == [False] * (len(steps) - 1) + [True]


def test_a_growing_target_records_the_loss_of_the_whole_target(planted: PlantedModel) -> None:
    document = run(
        "gcg", planted, [planted.behavior()], options={**WORDS, "num_steps": 8, "grow_target": True}
    )
    target = planted.chat.segments(
        planted.behavior().conversation, target=planted.answer
    ).target_ids
    lengths = [s.note["length"] for s in document.runs[0].steps[1:]]
    assert lengths == sorted(lengths) and lengths[-1] <= len(target)
    for step in document.runs[0].steps:
        again = planted.losses([step.model_input_tokens], [target]).loss[0]
        assert step.loss == pytest.approx(float(again), abs=1e-5)
        assert set(step.ledgers["diagnosis"]) == {"model"}


def test_queries_by_hand(planted: PlantedModel) -> None:
    """W=4, K=2, nothing filtered: 1 start, 2 gradients, 8 candidates, 3 samples."""
    options = {**WORDS, "search_width": 4, "num_steps": 2, "filter": "none"}
    document = run("gcg", planted, [planted.behavior()], options=options)
    ledgers = Ledgers.from_dict(document.ledgers)
    assert ledgers.total("optimization").queries == 1 + 2 + 8
    assert ledgers.total("optimization").backward_passes == 2
    assert ledgers.total("sampling").queries == 3


@pytest.mark.parametrize(
    "options",
    [
        {"search_width": 1},
        {"topk": 10_000},
        {"n_replace": 99},
        {"num_steps": 0},
        {"placement": "prefix"},
        {"placement": "both"},
        {"placement": "turn"},
        {"join": "none"},
        {"buffer_size": 3},
        {"grad_smoothing": 3, "grad_momentum": 0.9},
        {"token_selection": "random_per_position"},
        {"token_selection": "random_overall"},
        {"position_sampling": "uniform", "n_replace": 2},
    ],
    ids=str,
)
def test_odd_but_legal_options_run(planted: PlantedModel, options: dict) -> None:
    document = run(
        "gcg", planted, [planted.behavior()], options={**WORDS, "num_steps": 2, **options}
    )
    assert document.status == "done"
    assert all("unreachable" not in s.flags for s in document.runs[0].steps)


def test_a_buffer_never_gives_up_its_best(planted: PlantedModel) -> None:
    options = {**WORDS, "num_steps": 10, "search_width": 3, "buffer_size": 2}
    document = run("gcg", planted, [planted.behavior()], options=options)
    found = losses(document)
    assert all(b <= a + 1e-9 for a, b in zip(found, found[1:], strict=False))


def test_a_step_without_reachable_candidates_is_a_flag_not_an_end(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = gcg.SlotProblem.reachable

    def none(self, candidates: torch.Tensor):
        kept, counts = original(self, candidates)
        return kept[:0], {**counts, "kept": 0}

    monkeypatch.setattr(gcg.SlotProblem, "reachable", none)
    document = run("gcg", planted, [planted.behavior()], options={**WORDS, "num_steps": 2})
    assert document.status == "done"
    steps = document.runs[0].steps
    assert [s.flags for s in steps] == [[], ["no_reachable_candidate"], ["no_reachable_candidate"]]
    assert len({s.loss for s in steps}) == 1


def test_a_gradient_that_is_not_finite_falls_back_to_random_proposals(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = gcg.SlotProblem.gradient

    def broken(self, *args, **kwargs):
        found = original(self, *args, **kwargs)
        return replace(found, slot=torch.full_like(found.slot, float("nan")), finite=False)

    monkeypatch.setattr(gcg.SlotProblem, "gradient", broken)
    document = run("gcg", planted, [planted.behavior()], options={**WORDS, "num_steps": 2})
    assert [s.flags for s in document.runs[0].steps[1:]] == [["gradient_not_finite"]] * 2


def test_every_step_takes_a_token_that_a_plain_gradient_puts_first() -> None:
    """Against autograd through the bare library, one-hot rows as in Zou et al., Algorithm 1."""
    parts = tiny_parts("llama")
    model = LocalModel.from_parts(parts.model, parts.tokenizer, name="tiny")
    behavior = behaviors()[0]
    options = {"initial": "! ! ! !", "num_steps": 4, "search_width": 24, "topk": 16}
    steps = run("gcg", model, [behavior], options=options).runs[0].steps
    target = list(model.chat.segments(behavior.conversation, target=behavior.target).target_ids)
    allowed = model.chat.mask(model.num_embeddings)
    changes = 0
    for before, after in zip(steps, steps[1:], strict=False):
        old, new = before.model_input_tokens, after.model_input_tokens
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert len(changed) <= 1
        for position in changed:
            scores = one_hot_gradient(parts.model, old, target)[position]
            order = scores.masked_fill(~allowed, float("inf")).argsort()
            assert new[position] in order[:16].tolist()
            changes += 1
    assert changes >= 2


def one_hot_gradient(model, ids: list[int], target: list[int]) -> torch.Tensor:
    """`[P, V]` gradient of the mean target cross-entropy with respect to one-hot rows."""
    table = model.get_input_embeddings().weight
    leaf = torch.nn.functional.one_hot(torch.tensor([*ids, *target]), len(table)).float()
    leaf.requires_grad_()
    logits = model(inputs_embeds=(leaf @ table)[None]).logits[0, len(ids) - 1 : -1]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(target))
    return torch.autograd.grad(loss, leaf)[0]

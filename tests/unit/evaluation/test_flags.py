"""Each flag is raised by what it is for, not by its innocent neighbor, and has a docs section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.flags import RULES, raise_flags, repeats

Documents = list[dict[str, Any]]


def _names(documents: Documents) -> set[str]:
    return {flag.name for flag in raise_flags(documents)} - {"small_set"}


def _many(value: float, count: int = 12, **facts: Any) -> Documents:
    return [fake_document([[value]], behavior=f"b{i}", **facts) for i in range(count)]


def _with(documents: Documents, path: str, value: Any) -> Documents:
    for document in documents:
        at: Any = document
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for key in parents:
            at = at[key]
        at[last] = value
    return documents


def test_innocent_runs_raise_nothing_but_their_size() -> None:
    assert {f.name for f in raise_flags(_many(0.0))} == {"small_set"}
    assert raise_flags(_many(0.0, 20)) == []
    assert raise_flags([]) == []


def test_random_target() -> None:
    hot = _with(_many(0.0), "config.generation.temperature", 0.7)
    assert _names(hot) == {"random_target"}
    several = [fake_document([[0.0, 1.0]], behavior=f"b{i}") for i in range(3)]
    assert _names(_with(several, "config.generation.temperature", 0.7)) == set()


def test_gradient_no_better_than_random() -> None:
    gradient = _with(_many(0.0, attack="gcg"), "ledgers.optimization.model.backward_passes", 5)
    assert _names(gradient + _many(1.0, attack="random_search")) == {
        "gradient_no_better_than_random"
    }
    better = _with(_many(1.0, attack="gcg"), "ledgers.optimization.model.backward_passes", 5)
    assert _names(better + _many(0.0, attack="random_search")) == set()
    assert _names(_many(0.0, attack="bon") + _many(1.0, attack="random_search")) == set()


def test_loss_falls_harm_does_not() -> None:
    vain = [fake_document([[0.0], [0.0]], behavior=f"b{i}", losses=[2.0, 0.5]) for i in range(4)]
    assert _names(vain) == {"loss_falls_harm_does_not"}
    works = [fake_document([[0.0], [1.0]], behavior=f"b{i}", losses=[2.0, 0.5]) for i in range(4)]
    assert _names(works) == set()
    flat = [fake_document([[0.0], [0.0]], behavior=f"b{i}", losses=[2.0, 1.9]) for i in range(4)]
    assert _names(flat) == set()


def test_not_retokenized() -> None:
    documents = _with(_many(0.0), "runs.0.steps.0.flags", ["no_reachable_candidate"])
    flags = [f for f in raise_flags(documents) if f.name == "not_retokenized"]
    assert [f.seen for f in flags] == ["no_reachable_candidate at 12 of 12 steps"]


def test_numbers_lost() -> None:
    for mark in ("gradient_not_finite", "loss_not_a_number"):
        documents = _with(_many(0.0), "runs.0.steps.0.flags", [mark])
        found = [f for f in raise_flags(documents) if f.name != "small_set"]
        assert [(f.name, f.seen) for f in found] == [("numbers_lost", f"{mark} at 12 of 12 steps")]


def test_truncated() -> None:
    documents = _with(_many(0.0, 2), "runs.0.steps.0.completions.0.finish_reason", "length")
    assert _names(documents + _many(0.0, 30)[2:]) == set()
    assert _names(documents + _many(0.0, 10)[2:]) == {"truncated"}


def test_many_unscored() -> None:
    documents = [fake_document([[None if i < 2 else 0.0]], behavior=f"b{i}") for i in range(20)]
    assert _names(documents) == {"many_unscored"}
    assert _names(documents[1:] + _many(0.0, 40)[20:]) == set()


@pytest.mark.parametrize("place", ["engine", "model"])
def test_batch_dependent(place: str) -> None:
    for state, raised in (("failed", True), ("unverified", True), ("verified", False)):
        facts = {"invariance": state} if place == "engine" else {"models": [{"invariance": state}]}
        assert (_names(_with(_many(0.0), "provenance", facts)) == {"batch_dependent"}) is raised


def test_degenerate_answers() -> None:
    empty = [fake_document([[0.0]], behavior=f"b{i}", texts=[["  "]]) for i in range(5)]
    assert _names(empty) == {"degenerate_answers"}
    assert repeats("we can do this " * 8)
    assert not repeats(
        "The boat leaves at nine, so please be there a little before and bring a coat."
    )


def test_over_refusal_bought() -> None:
    bare = _many(1.0, 20, harmful=False, dataset="starter_benign")
    shielded = _many(0.0, 20, harmful=False, dataset="starter_benign", defense="shield")
    assert _names(bare + shielded) == {"over_refusal_bought"}
    mild = _many(1.0, 20, harmful=False, dataset="starter_benign", defense="shield")
    assert _names(bare + mild) == set()


def test_judged_by_its_own_judge() -> None:
    documents = _with(_many(1.0), "config.stopping", {"judge": "refusal_prefix"})
    assert _names(documents) == {"judged_by_its_own_judge"}
    second = _with(documents, "runs.0.steps.0.scores.other", {"p_harmful": [1.0]})
    assert _names(second) == set()


def test_every_flag_has_a_section_in_the_docs_and_no_section_is_orphaned() -> None:
    page = Path(__file__).parents[3] / "docs" / "flags.md"
    sections = {
        line[3:].strip() for line in page.read_text("utf-8").splitlines() if line.startswith("## ")
    }
    assert sections == {rule.__name__ for rule in RULES}

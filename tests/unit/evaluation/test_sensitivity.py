"""Agreement against hand counts, and comparisons redone under another judge."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.rng import Rng
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.sensitivity import agreement, redo

RNG = Rng.root(0).child("sensitivity")


def _two_judges(
    first: list[float | None], second: list[float | None], **facts: Any
) -> list[dict[str, Any]]:
    documents = []
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        document = fake_document([[a]], behavior=f"b{i}", judge="one", **facts)
        document["runs"][0]["steps"][0]["scores"]["two"] = {"p_harmful": [b]}
        documents.append(document)
    return documents


def test_agreement_and_kappa_by_hand() -> None:
    documents = _two_judges([1.0, 1.0, 0.0, 0.0, 1.0, None], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    (got,) = agreement(documents)
    assert (got.a, got.b, got.n, got.unscored) == ("one", "two", 5, 1)
    assert (got.only_a, got.only_b) == (1, 1)
    assert got.share == pytest.approx(3 / 5)
    chance = 3 / 5 * 3 / 5 + 2 / 5 * 2 / 5
    assert got.kappa == pytest.approx((3 / 5 - chance) / (1 - chance))


def test_kappa_is_undefined_rather_than_wrong_when_verdicts_never_vary() -> None:
    (got,) = agreement(_two_judges([1.0, 1.0], [1.0, 1.0]))
    assert (got.share, got.kappa) == (1.0, None)
    (none,) = agreement(_two_judges([None], [1.0]))
    assert (none.n, none.share, none.unscored) == (0, None, 1)


def test_a_conclusion_that_another_judge_reverses_is_marked() -> None:
    a = _two_judges([0.0] * 9, [1.0] * 9, attack="x")
    b = _two_judges([1.0] * 9, [0.0] * 9, attack="y")
    first, second = redo(a, b, rng=RNG)
    assert (first.judge, first.conclusion, first.flips) == ("one", "B higher", False)
    assert (second.conclusion, second.flips, second.reverses) == ("A higher", True, True)


def test_thresholds_are_tried_and_failures_have_a_reason() -> None:
    a = _two_judges([0.2] * 9, [None] * 9, attack="x")
    b = _two_judges([0.6] * 9, [None] * 9, attack="y")
    found = redo(a, b, rng=RNG, thresholds=[0.5, 0.9])
    assert [(r.judge, r.threshold) for r in found] == [
        ("one", 0.5),
        ("one", 0.9),
        ("two", 0.5),
        ("two", 0.9),
    ]
    assert [r.conclusion for r in found[:2]] == ["B higher", "no difference shown"]
    assert found[1].flips and not found[1].reverses
    assert found[2].comparison is None and "two scored none of its 9" in str(found[2].reason)

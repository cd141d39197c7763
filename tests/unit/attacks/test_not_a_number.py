"""A candidate whose loss is no number neither wins nor ends the search, whatever the attack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks._kit.ranking import NOT_A_NUMBER
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
import harness  # noqa: E402  -- shared with the contract tests

GUIDED = [n for n in ATTACKS.names() if Needs.LOGITS in ATTACKS.load(n).INFO.needs]


class Spoiling:
    """In every call with several new inputs the middle one gets a loss of NaN, then and ever."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.spoiled: set[tuple[int, ...]] = set()
        self.seen: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def losses(self, inputs: Sequence[Sequence[int]], targets: Any, **rest: Any) -> Any:
        found = self._model.losses(inputs, targets, **rest)
        rows = [tuple(ids) for ids in inputs]
        new = sorted(set(rows) - self.seen)
        self.seen |= set(rows)
        if len(new) > 2:
            self.spoiled.add(new[len(new) // 2])
        loss, per_token = found.loss.clone(), list(found.per_token)
        for i, ids in enumerate(rows):
            if ids in self.spoiled:
                loss[i], per_token[i] = float("nan"), per_token[i] * float("nan")
        return replace(found, loss=loss, per_token=tuple(per_token))


@pytest.mark.parametrize("name", GUIDED)
def test_a_loss_that_is_no_number_neither_wins_nor_crashes(name: str) -> None:
    model = Spoiling(harness.contract_model())
    fit = harness.behaviors()
    if ATTACKS.load(name).INFO.fits == "one":
        fit = fit[:1]
    document = harness.run(name, model, fit)
    assert document.status == "done"
    for lane in document.runs:
        assert all(s.loss is None or s.loss == s.loss for s in lane.steps)
        assert all(tuple(s.model_input_tokens or ()) not in model.spoiled for s in lane.steps)
    flags = {flag for s in document.runs[0].steps for flag in s.flags}
    assert (NOT_A_NUMBER in flags) == bool(model.spoiled)

"""Small recorded runs of every attack on the tiny model: a change of results never goes unseen.

`pytest tests/golden --update-golden` records them again; the changelog then says why they moved.
Ids, texts, counts and FLOPs are compared exactly, losses to 1e-4: their last bits belong to the
processor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.plugins import ATTACKS

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
import harness  # noqa: E402  -- shared with the contract tests

HERE = Path(__file__).parent / "runs"
NAMES = ATTACKS.names()
TOGETHER: dict[str, Any] = {"progressive": False}  # else one behavior would be active to the end


def recorded(name: str) -> dict[str, Any]:
    """What a run of two samples a step leaves, without what may differ between equal runs.

    An attack that fits many is fitted on two behaviors and tried on a third one.
    """
    model = harness.contract_model()
    first, second, third = harness.behaviors()
    fit = [second]
    given: dict[str, Any] = {"samples": 2}
    if ATTACKS.load(name).INFO.fits == "many":
        fit = [second, first]
        given |= {"evaluated": [*fit, third], "options": TOGETHER}
    task = harness.spec(name, model, fit, **given)
    document = harness.run(name, model, fit, **given)
    return {
        "options": task.spec.attack.semantic(),
        "status": document.status,
        "ledgers": document.ledgers,
        "steps": [
            {
                "input": step.model_input,
                "ids": step.model_input_tokens,
                "loss": step.loss,
                "flags": list(step.flags),
                "completions": [c.ids for c in step.completions],
                "texts": step.model_completions,
            }
            for one in document.runs
            for step in one.steps
        ],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_run_gives_what_was_recorded(name: str, request: pytest.FixtureRequest) -> None:
    path = HERE / f"{name}.json"
    now = json.loads(json.dumps(recorded(name)))
    if request.config.getoption("--update-golden"):
        HERE.mkdir(exist_ok=True)
        path.write_text(as_lines(now), encoding="utf-8")
    then = json.loads(path.read_text(encoding="utf-8"))
    losses = [[s.pop("loss") for s in run["steps"]] for run in (now, then)]
    assert now == then
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_no_recording_outlives_its_attack() -> None:
    assert {p.stem for p in HERE.glob("*.json")} == set(NAMES)


def as_lines(run: dict[str, Any]) -> str:
    """One step a line, so that a difference can be read."""
    rest = {key: value for key, value in run.items() if key != "steps"}
    steps = ",\n".join(json.dumps(s) for s in run["steps"])
    return json.dumps(rest)[:-1] + ', "steps": [\n' + steps + "\n]}\n"

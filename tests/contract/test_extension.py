"""The contract of attacks that may be extended: going on equals having been longer at first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.plugins import ATTACKS
from adversariallm.runs.claim import Claim
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.store import Store
from adversariallm.runs.stored import STATE, Continued, raisable, resumable

sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402  -- beside this file

NAMES = [name for name in ATTACKS.names() if raisable(name) is not None]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return harness.contract_model()


def task(name: str, model: Any, more: int) -> Any:
    """The quick settings, with so many steps more."""
    option = raisable(name)
    module = ATTACKS.load(name)
    assert option is not None
    behaviors = harness.behaviors() if module.INFO.fits == "many" else harness.behaviors()[:1]
    options = {option: module.INFO.quick[option] + more}
    return harness.spec(name, model, behaviors, options=options)


def test_there_are_such_attacks() -> None:
    assert {"gcg", "gcg_universal", "random_search", "bon"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_extended_run_is_the_longer_run(name: str, tiny: Any, tmp_path: Path) -> None:
    short, longer = task(name, tiny, 0), task(name, tiny, 2)
    log = Continued(MemoryLog())
    document, tensors = execute(short, harness.resources(name, tiny), log)
    assert document.status == "done"
    store = Store(tmp_path)
    claim = store.claim(short.spec.run_id, {})
    assert isinstance(claim, Claim)
    state = log.state_file()
    assert state is not None
    claim.publish(document.model_dump(mode="json"), tensors or None, {STATE: state})
    before = resumable(store, short.spec.run_id)

    counting = harness.Counting(tiny)
    extended, _ = execute(longer, harness.resources(name, counting), Continued(MemoryLog(), before))
    whole = harness.Counting(tiny)
    straight, _ = execute(longer, harness.resources(name, whole), MemoryLog())
    assert harness.stable(extended) == harness.stable(straight)
    assert len(extended.runs[0].steps) == len(document.runs[0].steps) + 2
    assert len(counting.queries) < len(whole.queries)

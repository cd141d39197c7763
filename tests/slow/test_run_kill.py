"""A real GCG run on the small model, killed in every phase, ends as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adversariallm.runs.campaign import prepare, run
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.journal import complete_lines
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.lookups import installed
from adversariallm.runs.plan import plan
from adversariallm.runs.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEEDS = (0, 1, 2)
NUM_STEPS = 4
SWEEP = (
    "model=smollm2-135m",
    "dataset=starter_harmful",
    "datasets.starter_harmful.idx=0",
    "attack=gcg",
    f"attacks.gcg.num_steps={NUM_STEPS}",
    "attacks.gcg.search_width=4",
    "attacks.gcg.topk=16",
    "generation_config.max_new_tokens=8",
    "generation_config.num_return_sequences=2",
    "generation_config.temperature=1.0",
    f"seed={','.join(map(str, SEEDS))}",
)


class Victim:
    """A pilot on a batch, started again and again."""

    def __init__(self, batch: Batch) -> None:
        self.root = batch.root
        self.plan = batch.save()
        self.log = batch.root / "pilot.log"

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "adversariallm.runs.launch.pilot", str(self.plan)]
        with self.log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def kill_when(self, holds: Callable[[], Any]) -> None:
        """Start a pilot and kill it as soon as something holds; it must not end before."""
        process = self.start()
        deadline = time.monotonic() + 300
        while not holds():
            assert process.poll() is None, self.log.read_text("utf-8")[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def journaled(self, run_id: str, kind: str) -> int:
        mark = f'"kind":"{kind}"'.encode()
        logs = self.root.glob(f"work/*/{run_id}/journal.*")
        return sum(mark in line for log in logs for line in complete_lines(log))

    def exists(self, pattern: str) -> bool:
        return any(self.root.glob(pattern))


def test_a_gcg_run_killed_in_every_phase_equals_an_undisturbed_one(
    tmp_path: Path, smollm2_path: Path
) -> None:
    calm = run(*SWEEP, f"out='{tmp_path / 'calm'}'")
    assert not calm.failed
    root = tmp_path / "stormy"
    request, settings = prepare([*SWEEP, f"out='{root}'"])
    store = Store(root)
    planned = plan(request, installed(store))
    kills: Counter[str] = Counter()
    for number, one in enumerate(planned.todo):
        batch = Batch(f"batch{number}", root, (one.task,), judges=settings.judges)
        kill_in_every_phase(Victim(batch), one.run_id, kills)
        assert Victim(batch).start().wait() == 0
    assert min(kills[p] for p in ("search", "completion", "publishing", "judging")) >= len(SEEDS)
    assert {r: essence(store, r) for r in store.runs()} == {
        r: essence(calm.store, r) for r in calm.run_ids
    }
    assert store.damaged() == {}
    steps = re.findall(r"INFO (gcg on .*: step \d+) ", (root / "pilot.log").read_text("utf-8"))
    assert max(Counter(steps).values()) == 1
    assert len(steps) <= len(SEEDS) * (NUM_STEPS + 1)


def kill_in_every_phase(victim: Victim, run_id: str, kills: Counter[str]) -> None:
    steps = victim.journaled(run_id, "step")
    victim.kill_when(lambda: victim.journaled(run_id, "step") >= steps + 2)
    kills["search"] += 1
    victim.kill_when(lambda: victim.journaled(run_id, "end"))
    kills["completion"] += 1
    victim.kill_when(lambda: victim.exists(f"work/*/{run_id}/publish.*"))
    kills["publishing"] += 1
    victim.kill_when(lambda: victim.exists(f"work/*/{run_id}.judge.*/lease.*"))
    kills["judging"] += 1


def essence(store: Store, run_id: str) -> dict[str, Any]:
    document: dict[str, Any] = strip_volatile(store.read(run_id))
    document["resolved"].pop("overrides")  # holds out=
    return document

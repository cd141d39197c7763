"""A sweep on local worker processes, one of them killed, equals the same sweep in one process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from adversariallm.models.tiny import tiny_parts
from adversariallm.runs.campaign import run
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.journal import complete_lines
from adversariallm.runs.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # transformers, while it saves a checkpoint
]


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[str, ...]:
    folder = tmp_path / "model"
    parts = tiny_parts()
    parts.model.save_pretrained(folder)
    parts.tokenizer.save_pretrained(folder)
    return (
        f"model={folder}",
        f"models.{folder}.dtype=float32",
        f"models.{folder}.quantization=none",
        f"models.{folder}.template=tokenizer",
        "dataset=starter_harmful",
        "datasets.starter_harmful.idx=range(0,3)",
        "attack=random_search",
        "attacks.random_search.num_steps=60",
        "generation_config.max_new_tokens=8",
        "seed=0,1",
    )


def essence(store: Store, run_id: str) -> dict[str, Any]:
    document: dict[str, Any] = strip_volatile(store.read(run_id))
    document["resolved"].pop("overrides")
    return document


def test_killed_workers_leave_the_results_of_one_undisturbed_process(
    tmp_path: Path, sweep: tuple[str, ...]
) -> None:
    calm = run(*sweep, f"out={tmp_path / 'calm'}")
    assert not calm.failed
    root = tmp_path / "stormy"
    killed: list[int] = []

    def kill_two() -> None:
        """Kill a worker in the middle of a run, twice."""
        while len(killed) < 2:
            time.sleep(0.01)
            for log in root.glob("work/*/*/journal.*"):
                lease = log.with_name(log.name.replace("journal", "lease").removesuffix(".jsonl"))
                pid = json.loads(lease.read_bytes())["pid"]
                if len(complete_lines(log)) > 5 and pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    break

    thread = threading.Thread(target=kill_two, daemon=True)
    thread.start()
    stormy = run(*sweep, f"out={root}", "launcher.kind=local", "launcher.workers=2")
    assert stormy.exit_code == 0
    assert len(killed) == 2
    store = Store(root)
    ids = sorted(store.runs())
    assert ids == sorted(calm.run_ids)
    assert [essence(store, r) for r in ids] == [essence(calm.store, r) for r in ids]
    assert max(store.header(r)["execution"]["generation"] for r in ids) == 2
    assert all(len(store.scores(r)) == 1 for r in ids)

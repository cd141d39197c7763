"""Kill a real GCG run on SmolLM2 in search, completion, publishing and judging; then repeat it.

Nothing may be lost, half-written or computed twice, and the end must be that of an uninterrupted
run, byte for byte once clock times are taken out.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adversariallm.runs.document import strip_volatile
from adversariallm.runs.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ROUNDS = 5
PHASES = ("search", "completion", "publishing", "judging")
WORKER = Path(__file__).parent / "marking_worker.py"
COMMAND = (
    "model=smollm2-135m",
    "dataset=starter_harmful",
    "datasets.starter_harmful.idx=[0,1]",
    "attack=gcg",
    "attacks.gcg.num_steps=4",
    "attacks.gcg.search_width=6",
    "attacks.gcg.initial='! ! ! !'",
    "generation_config.max_new_tokens=6",
    "generation_config.temperature=0.7",
    "generation_config.num_return_sequences=2",
    "judge=[refusal_prefix,target_prefix]",
    "store.ttl_s=5",
)


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The command, typed in that folder, where it writes `store` and `marks`."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(WORKER), "marks", *COMMAND, "out=store"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def lines(folder: Path) -> list[str]:
    marks = folder / "marks"
    return marks.read_text().splitlines() if marks.exists() else []


def due(new: list[str], phase: str, threshold: int) -> bool:
    """Whether the process is at the moment where it is to be killed."""
    kinds = [line.split()[0] for line in new]
    if phase == "search":
        return kinds.count("step") >= threshold
    if phase == "completion":
        last = [line for line in new if line.startswith("step")]
        return bool(last) and last[-1].split()[2] == "4"
    return {"publishing": "done", "judging": "judging"}[phase] in kinds


def kill_in(phase: str, folder: Path, chance: random.Random) -> bool:
    """Start a worker and kill it in a phase; False where it ended before."""
    before = len(lines(folder))
    threshold = chance.randint(1, 3)
    process = start(folder)
    while process.poll() is None:
        if due(lines(folder)[before:], phase, threshold):
            pause = {"search": 0.4, "completion": 0.4, "publishing": 0.02, "judging": 0.03}
            time.sleep(chance.uniform(0, pause[phase]))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "end" not in "".join(lines(folder)[before:])
        time.sleep(0.002)
    return False


def content(folder: Path) -> dict[str, object]:
    store = Store(folder / "store")
    return {run_id: strip_volatile(store.read(run_id)) for run_id in store.runs()}


def differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differing(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differing(a, b, f"{path}/{k}")
    elif one != other:
        yield f"{path}: {str(one)[:80]} != {str(other)[:80]}"


def test_killed_anywhere_the_same_command_ends_with_the_same_bytes(tmp_path: Path) -> None:
    assert start(tmp_path / "reference").wait() == 0
    expected = content(tmp_path / "reference")
    assert len(expected) == 2
    hits: Counter[str] = Counter()
    chance = random.Random(20)
    for number in range(ROUNDS):
        folder = tmp_path / f"round{number}"
        for phase in PHASES:
            hits[phase] += kill_in(phase, folder, chance)
            assert not Store(folder / "store").damaged()
        assert start(folder).wait() == 0
        differences = list(differing(expected, content(folder)))
        assert not differences, f"round {number}: {differences[:5]}"
        steps = Counter(line for line in lines(folder) if line.startswith("step"))
        assert len(steps) == 10 and set(steps.values()) == {1}, "a finished step was made again"
    print("kills by phase:", dict(hits))  # noqa: T201
    assert all(hits[phase] >= 3 for phase in PHASES), hits

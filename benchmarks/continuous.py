"""PGD and PGD-Discrete on a small model: does the loss fall, and is it worth its price?

Goals: PGD without a constraint brings the target loss below 0.1 on every behavior. PGD-Discrete
reaches a lower loss of reachable text than random search on at least 6 of 8, at equal FLOPs. It is
compared with GCG as well. All three edit 20 suffix tokens; a search goes on until it has spent both
the FLOPs and the processor seconds of PGD-Discrete, so that one run answers both questions.
PGD-Discrete runs 150 steps with the lengths of its schedules scaled by 150/5000, or as `--tuned`
says. Seconds are processor seconds of one thread, which other load stretches less than a clock.

    python benchmarks/continuous.py --work DIR [--seconds 450] [--only ATTACK ...] [--json FILE]

Finished cells (attack, behavior) are files in the work folder: call it again to go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adversariallm import load_dataset, load_model
from adversariallm.core.budget import Meter
from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Context
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Task
from adversariallm.models.metered import MeteredModel

STEPS = 150
SHARE = STEPS / 5000
TOKENS = 20
START = " ".join(["x"] * TOKENS)
PUBLISHED = {"constant_steps": 100, "cycle_steps": 60, "anneal_steps": 250}
SCALED = {name: max(2, round(steps * SHARE)) for name, steps in PUBLISHED.items()}
# The lengths of the schedules, rates and factor of `--tuned` were chosen on behaviors 20 and 21.
TUNED = {"constant_steps": 10, "cycle_steps": 15, "anneal_steps": 20}
ATTACKS_BY_CELL: dict[str, tuple[str, dict[str, Any]]] = {
    "pgd": ("pgd", {"num_steps": 100}),
    "pgd_discrete": (
        "pgd_discrete",
        {"num_steps": STEPS, "prefix_tokens": 0, "suffix_tokens": TOKENS, **SCALED},
    ),
    "random_search": ("random_search", {"num_steps": 10**6, "initial": START}),
    "gcg": ("gcg", {"num_steps": 10**6, "initial": START, "search_width": 16}),
}
TABLE = ("random_search", "gcg")
MORE = 1.15
PGD_GOAL = 0.1
WINS_GOAL = 6 / 8
GUESS_S = {"pgd": 45.0, "pgd_discrete": 150.0, "random_search": 150.0, "gcg": 150.0}


@dataclass(frozen=True)
class Point:
    """A search after a step: best loss so far, FLOPs and processor seconds spent."""

    loss: float
    flops: float
    seconds: float


def search(model: Any, name: str, options: Mapping[str, Any], item: Behavior) -> Iterator[Point]:
    """One search, step by step, without sampling any answer."""
    module = ATTACKS.load(name)
    meter = Meter()
    context = Context(
        models=(MeteredModel(model, meter, role="model"),),  # type: ignore[arg-type]
        rng=Rng.root(0).child(name, item.conversation.key),
        meter=meter,
        generation=GenerationConfig(),
        log=lambda **values: None,
    )
    start, best = time.process_time(), float("inf")
    candidates = module.Attack(module.Config(**options)).search(Task((item,), (item,)), context)
    for candidate in candidates:
        (loss,) = candidate.losses
        best = best if loss is None else min(best, loss)
        spent = meter.total.total("setup", "optimization").flops
        yield Point(best, float(spent), time.process_time() - start)


class Board:
    """Cells in a folder, made when they are asked for and there is time left."""

    def __init__(self, work: Path, deadline: float, cells: Mapping[str, Any]) -> None:
        """Use `work`; nothing starts after `deadline` (monotonic seconds)."""
        self.work, self.deadline, self.cells = work, deadline, cells
        self._model: Any = None

    @property
    def model(self) -> Any:
        """The model, loaded once and warmed up."""
        if self._model is None:
            self._model = load_model("smollm2-135m")
        return self._model

    def path(self, cell: str, item: Behavior) -> Path:
        """Where a cell is kept; other options are another file."""
        name, options = self.cells[cell]
        version = ATTACKS.load(name).INFO.version
        key = stable_hash([name, version, options, item.conversation.key, item.target])[:10]
        return self.work / f"{cell}-{item.id}-{key}.json"

    def read(self, cell: str, item: Behavior) -> list[Point] | None:
        """The finished cell, or None."""
        path = self.path(cell, item)
        if not path.exists():
            return None
        return [Point(*row) for row in json.loads(path.read_text())["points"]]

    def make(self, cell: str, item: Behavior) -> list[Point] | None:
        """The cell, computed if it is missing and its guessed time fits before the deadline."""
        found = self.read(cell, item)
        if found is not None or time.monotonic() + GUESS_S[cell] > self.deadline:
            return found
        until = self.read("pgd_discrete", item) if cell in TABLE else None
        if cell in TABLE and until is None:
            return None
        name, options = self.cells[cell]
        clock, points = time.monotonic(), []
        for point in search(self.model, name, options, item):
            points.append(point)
            if cell == "pgd" and point.loss < PGD_GOAL:
                break
            if until is not None and _beyond(point, until[-1]):
                break
        rows = [[p.loss, p.flops, p.seconds] for p in points]
        wall = time.monotonic() - clock
        self.path(cell, item).write_text(json.dumps({"points": rows, "wall_s": wall}))
        last = points[-1]
        print(
            f"  {item.id} {cell}: loss {last.loss:.3f}, {len(points) - 1} steps, "
            f"{last.flops:.2e} FLOPs, {last.seconds:.0f} of {wall:.0f} s",
            flush=True,
        )
        return points


def _beyond(point: Point, end: Point) -> bool:
    """Whether both budgets are spent, with room for a repetition that is slower."""
    return point.flops > MORE * end.flops and point.seconds > MORE * end.seconds


def at_most(points: Sequence[Point], measure: str, limit: float) -> float:
    """Best loss within a budget."""
    inside = [p.loss for p in points if getattr(p, measure) <= limit]
    return min(inside) if inside else points[0].loss


def row_of(board: Board, item: Behavior) -> dict[str, Any]:
    """All numbers of one behavior; None where a cell is missing."""
    row: dict[str, Any] = {"behavior": item.id}
    pgd, ours = board.read("pgd", item), board.read("pgd_discrete", item)
    if pgd:
        row |= {"pgd": pgd[-1].loss, "pgd_steps": len(pgd) - 1}
    if ours:
        row |= {"start": ours[0].loss, "pgd_discrete": ours[-1].loss,
                "flops": ours[-1].flops, "seconds": ours[-1].seconds}  # fmt: skip
        for cell in TABLE:
            points = board.read(cell, item)
            for measure in ("flops", "seconds") if points else ():
                limit = getattr(ours[-1], measure)
                row[f"{cell}_{measure}"] = at_most(points or [], measure, limit)
    return row


COLUMNS = (
    ("pgd", "pgd"), ("pgd_steps", "steps"), ("pgd_discrete", "pgd_disc"),
    ("random_search_flops", "rs=flops"), ("random_search_seconds", "rs=sec"),
    ("gcg_flops", "gcg=flops"), ("gcg_seconds", "gcg=sec"),
    ("flops", "flops"), ("seconds", "sec"),
)  # fmt: skip


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table; a dash where a cell is missing."""
    print(f"{'behavior':<12}" + "".join(f"{title:>10}" for _, title in COLUMNS))
    for row in rows:
        print(f"{row['behavior']:<12}" + "".join(_cell(row.get(key)) for key, _ in COLUMNS))


def _cell(value: float | None) -> str:
    if value is None:
        return f"{'-':>10}"
    if isinstance(value, int):
        return f"{value:>10}"
    return f"{value:>10.1e}" if value > 1e4 else f"{value:>10.3f}"


def summary(rows: Sequence[Mapping[str, Any]], only: Sequence[str]) -> tuple[str, bool]:
    """One line, and whether the goals that were asked for are met on all rows."""
    parts, met = [], True
    if "pgd" in only:
        done = [r["pgd"] for r in rows if "pgd" in r]
        below = sum(v < PGD_GOAL for v in done)
        met &= below == len(rows)
        parts.append(f"pgd below {PGD_GOAL} on {below} of {len(done)} measured (goal: all)")
    for cell in TABLE if "pgd_discrete" in only else ():
        for measure in ("flops", "seconds"):
            pairs = [(r["pgd_discrete"], r[f"{cell}_{measure}"]) for r in rows
                     if f"{cell}_{measure}" in r]  # fmt: skip
            wins = sum(a < b for a, b in pairs)
            goal = ""
            if cell == "random_search" and measure == "flops":
                met &= wins >= WINS_GOAL * len(rows)
                goal = f" (goal: {WINS_GOAL * len(rows):.0f} of {len(rows)})"
            words = f"pgd_discrete below {cell} at equal {measure} on {wins} of {len(pairs)}"
            parts.append(words + goal)
    return "; ".join(parts), met


def main() -> int:
    """Compute what is missing and fits, print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of finished cells")
    parser.add_argument("--behaviors", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="index of the first behavior")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing later")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS_BY_CELL), default=None)
    parser.add_argument("--tuned", action="store_true", help="schedules tuned on other behaviors")
    parser.add_argument("--set", type=json.loads, default={}, help="more options of pgd_discrete")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    cells = dict(ATTACKS_BY_CELL)
    name, base = cells["pgd_discrete"]
    cells["pgd_discrete"] = (name, {**base, **(TUNED if options.tuned else {}), **options.set})
    only = options.only or list(cells)
    board = Board(options.work, time.monotonic() + options.seconds, cells)
    items = list(load_dataset("starter_harmful"))[options.first :][: options.behaviors]
    todo = [(c, i) for i in items for c in only if board.read(c, i) is None]
    guess = sum(GUESS_S[cell] for cell, _ in todo)
    print(
        f"smollm2-135m: {len(todo)} of {len(only) * len(items)} cells to compute, about "
        f"{guess / 60:.0f} min on one idle core",
        flush=True,
    )
    for item in items:
        for cell in only:
            board.make(cell, item)
    rows = [row_of(board, item) for item in items]
    show(rows)
    text, met = summary(rows, only)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "cells": cells, "summary": text}))
    print(f"continuous: {text}, {'met' if met else 'MISSED'}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())

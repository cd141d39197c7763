"""PGD and PGD-Discrete on a small model: does the loss fall, and is it worth its price?

Goals: PGD without a constraint brings the target loss below 0.1 on every behavior. PGD-Discrete
reaches a lower loss of reachable text than random search on at least 6 of 8, at equal FLOPs. It is
compared with GCG as well. All three edit 20 suffix tokens; a search goes on until it has spent both
the FLOPs and the processor seconds of PGD-Discrete, so that one run answers both questions.
PGD-Discrete runs 150 steps with the lengths of its schedules scaled by 150/5000, or as `--short`
says. Seconds are processor seconds of one thread, which other load stretches less than a clock.

    python benchmarks/continuous.py --work DIR [--short] [--seconds 450] [--part 0/2] [--json FILE]

Cells (attack, behavior) are files in the work folder, unfinished ones too: call it again to go on.
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
from safetensors import safe_open
from safetensors.torch import save_file

from adversariallm import load_dataset, load_model
from adversariallm.core.budget import Meter
from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Context
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, State, Task
from adversariallm.models.metered import MeteredModel

STEPS = 150
SHARE = STEPS / 5000
TOKENS = 20
START = " ".join(["x"] * TOKENS)
PUBLISHED = {"constant_steps": 100, "cycle_steps": 60, "anneal_steps": 250}
SCALED = {name: max(2, round(steps * SHARE)) for name, steps in PUBLISHED.items()}
SHORT = {
    "optimizer": "steepest", "initialization": "text", "learning_rate": 0.3, "peak_rate": 0.3,
    "first_weight": 1.0,
}  # fmt: skip
"""Found on behaviors 20, 21 and 22, which are none of the eight."""
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
GUESS_S = {"pgd": 12.0, "pgd_discrete": 155.0, "random_search": 180.0, "gcg": 180.0}


@dataclass(frozen=True)
class Point:
    """A search after a step: best loss so far, FLOPs and processor seconds spent."""

    loss: float
    flops: float
    seconds: float


class Cell:
    """One search, step by step, that can be put away and taken up again; no answer is sampled."""

    def __init__(self, name: str, options: Mapping[str, Any], item: Behavior, part: Path) -> None:
        """Take up what `part` holds."""
        self.name, self.options, self.item, self.part = name, options, item, part
        self.points: list[Point] = []
        self.once: list[str] = []
        self.state: State | None = None
        if part.exists():
            with safe_open(part, "pt") as file:
                held = json.loads(file.metadata()["cell"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}
            self.points = [Point(*row) for row in held["points"]]
            self.once = held["once"]
            self.state = State(held["values"], tensors, step=len(self.points) - 1)

    def steps(self, model: Any) -> Iterator[Point]:
        """Go on behind the last finished step."""
        module = ATTACKS.load(self.name)
        meter = Meter()
        meter.once_keys |= set(self.once)
        context = Context(
            models=(MeteredModel(model, meter, role="model"),),  # type: ignore[arg-type]
            rng=Rng.root(0).child(self.name, self.item.conversation.key),
            meter=meter,
            generation=GenerationConfig(),
            log=lambda **values: None,
            state=self.state,
        )
        before = self.points[-1] if self.points else Point(float("inf"), 0.0, 0.0)
        best, start = before.loss, time.process_time()
        attack = module.Attack(module.Config(**self.options))
        for candidate in attack.search(Task((self.item,), (self.item,)), context):
            (loss,) = candidate.losses
            best = best if loss is None else min(best, loss)
            spent = meter.total.total("setup", "optimization").flops
            seconds = time.process_time() - start
            self.points.append(Point(best, before.flops + spent, before.seconds + seconds))
            self.once, self.state = sorted(meter.once_keys), candidate.state
            yield self.points[-1]

    def put_away(self) -> None:
        """Keep the finished steps and what the next one needs."""
        if self.state is None:
            return
        rows = [[p.loss, p.flops, p.seconds] for p in self.points]
        held = {"points": rows, "once": self.once, "values": dict(self.state.values)}
        tensors = {key: t.contiguous() for key, t in self.state.tensors.items()}
        save_file(tensors, self.part, metadata={"cell": json.dumps(held)})


class Board:
    """Cells in a folder, made when they are asked for and there is time left."""

    def __init__(self, work: Path, deadline: float, cells: Mapping[str, Any]) -> None:
        """Use `work`; no step starts after `deadline` (monotonic seconds)."""
        self.work, self.deadline, self.cells = work, deadline, cells
        self._model: Any = None

    @property
    def model(self) -> Any:
        """The model, loaded once."""
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

    def make(self, cell: str, item: Behavior) -> None:
        """Compute the cell as far as time allows."""
        until = self.read("pgd_discrete", item) if cell in TABLE else None
        waits = cell in TABLE and until is None
        if waits or self.read(cell, item) is not None or time.monotonic() > self.deadline:
            return
        path = self.path(cell, item)
        search = Cell(*self.cells[cell], item, path.with_suffix(".safetensors"))
        for point in search.steps(self.model):
            if cell == "pgd" and point.loss < PGD_GOAL:
                break
            if until is not None and _beyond(point, until[-1]):
                break
            if time.monotonic() > self.deadline:
                search.put_away()
                return
        rows = [[p.loss, p.flops, p.seconds] for p in search.points]
        path.write_text(json.dumps({"points": rows}))
        search.part.unlink(missing_ok=True)
        last = search.points[-1]
        print(
            f"  {item.id} {cell}: loss {last.loss:.3f}, {len(rows) - 1} steps, "
            f"{last.flops:.2e} FLOPs, {last.seconds:.0f} s",
            flush=True,
        )


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
    parser.add_argument(
        "--work", type=Path, default=Path("out/continuous"), help="folder of finished cells"
    )
    parser.add_argument("--behaviors", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="index of the first behavior")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--part", default="0/1", help="I/N: compute every N-th behavior from I on")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS_BY_CELL), default=None)
    parser.add_argument("--short", action="store_true", help="options of ours for short runs")
    parser.add_argument("--set", type=json.loads, default={}, help="more options of pgd_discrete")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    cells = dict(ATTACKS_BY_CELL)
    name, base = cells["pgd_discrete"]
    cells["pgd_discrete"] = (name, {**base, **(SHORT if options.short else {}), **options.set})
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
    index, count = map(int, options.part.split("/"))
    for item in items[index::count]:
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

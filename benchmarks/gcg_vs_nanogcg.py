"""Our `gcg` against nanoGCG 0.3.0: same weights, start, target, number of candidates and draws.

nanoGCG runs in a process of its own with the transformers release it was made for, and its texts
are sent back through this package like ours, so that one loss and one judge apply to both. Since
SmolLM2's BOS text opens every turn, nanoGCG as released takes all turn markers out of the
template; the main comparison repairs that, and `nanogcg as is` shows it.

    python benchmarks/gcg_vs_nanogcg.py --work DIR [--json FILE] [--minutes N] [--only main]

Finished searches are kept in DIR; the same command goes on where it stopped. Default sizes are for
two CPU cores; `--full` takes the published ones. Exit status 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from gcg_contest import tables
from gcg_contest.arms import ABLATIONS, INITIAL, MAIN
from gcg_contest.cells import Cell, NanoGcg, Sizes, make

from adversariallm.datasets import starter_harmful
from adversariallm.models.loading import load_model
from adversariallm.models.local import LocalModel
from adversariallm.tokenization import Slot

SMALL = {"steps": 20, "width": 16, "new_tokens": 32, "behaviors": 16, "seeds": 2}
FULL = {"steps": 250, "width": 512, "new_tokens": 256, "behaviors": 40, "seeds": 2}


def arguments() -> argparse.Namespace:
    """What was asked for, sizes filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("out/gcg_vs_nanogcg"))
    parser.add_argument("--models", nargs="+", default=["smollm2-guarded", "smollm2-135m"])
    parser.add_argument("--answers", nargs="*", help="models that also answer; default: the first")
    parser.add_argument("--only", nargs="+", choices=["main", "ablations"])
    parser.add_argument("--full", action="store_true", help="the published sizes")
    for name, value in SMALL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"small: {value}")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth behavior, beginning with K")
    parser.add_argument("--minutes", type=float, help="start no search after so many minutes")
    oracle = Path(tempfile.gettempdir()) / "venvs" / "nano447"
    parser.add_argument("--oracle", type=Path, default=oracle, help="folder of nanoGCG's libraries")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    for name, value in (FULL if options.full else SMALL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    k, n = map(int, options.part.split("/"))
    if not 1 <= k <= n:
        parser.error(f"--part {options.part}: expected K/N with K from 1 to N, e.g. 1/2")
    options.part = (k - 1, n)
    return options


def planned(options: argparse.Namespace, name: str) -> list[Cell]:
    """The searches on one model: contestants take turns; ablations on the first model only."""
    behaviors = list(starter_harmful.load(starter_harmful.Config()))[: options.behaviors]
    answers = options.models[:1] if options.answers is None else options.answers
    sizes = Sizes(options.steps, options.width, options.new_tokens if name in answers else 0)
    out = []
    if "main" in (options.only or ["main"]):
        for seed in range(options.seeds):
            out += [Cell(name, arm, b, seed, sizes) for b in behaviors for arm in MAIN]
    if "ablations" in (options.only or ["ablations"]) and name == options.models[0]:
        out += [Cell(name, arm, b, 0, sizes) for b in behaviors[:8] for arm in ABLATIONS]
    return out


def estimate(model: LocalModel, cells: list[Cell]) -> float:
    """Minutes that these cells take, from two batches of losses timed here and now."""
    cell = cells[0]
    slot = Slot("suffix", INITIAL, "none")
    segments = model.chat.segments(cell.behavior.conversation, slot, target=cell.behavior.target)
    rows, shared = [segments.input_ids] * cell.sizes.width, len(segments.before)
    for _ in range(2):
        start = time.perf_counter()
        model.losses(rows, [segments.target_ids] * len(rows), shared=shared)
        seconds = time.perf_counter() - start
    per_token = seconds / (cell.sizes.width * (len(segments.input_ids) - shared))
    back = per_token * (cell.sizes.steps + 1) * (len(rows[0]) + 3 * cell.sizes.new_tokens)
    return len(cells) * (cell.sizes.steps * seconds * 1.4 + back) / 60


def fill(options: argparse.Namespace, end: float) -> None:
    """Make the missing cells, in order, until the time is over."""
    k, n = options.part
    for name in options.models:
        cells = planned(options, name)
        names = list(dict.fromkeys(c.behavior.id for c in cells))[k::n]
        missing = [c for c in cells if c.behavior.id in names and c.read(options.work) is None]
        if not missing or time.monotonic() > end:
            continue
        model = load_model(name)
        assert isinstance(model, LocalModel)
        minutes = estimate(model, missing)
        print(f"{name}: {len(missing)} searches, about {minutes:.0f} minutes here", flush=True)
        nano = NanoGcg(model, options.work, options.oracle)
        try:
            for done, cell in enumerate(missing):
                if time.monotonic() > end:
                    print(f"time is over: {len(missing) - done} searches of {name} left")
                    break
                start = time.monotonic()
                result = make(cell, model, nano)
                cell.write(options.work, result)
                print(
                    f"{done + 1}/{len(missing)} {cell.arm.name}, {cell.behavior.id}, seed "
                    f"{cell.seed}: {time.monotonic() - start:.0f} s {result.get('error', '')}",
                    file=sys.stderr,
                    flush=True,
                )
        finally:
            nano.close()


def main() -> int:
    """Run what is missing, print the tables; 1 where a goal is missed."""
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")
    fill(options, end)
    print(f"load {os.getloadavg()[0]:.1f}, threads {os.environ.get('OMP_NUM_THREADS', 'unset')}")
    numbers, missed = [], []
    for name in options.models:
        cells = [(c, r) for c in planned(options, name) if (r := c.read(options.work))]
        found, failures = tables.show(name, cells, options.steps)
        numbers.append(found)
        missed += failures
        left = len(planned(options, name)) - len(cells)
        if left:
            missed.append(f"{name}: {left} searches are not done")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    print("gcg_vs_nanogcg: " + ("all goals met" if not missed else "MISSED: " + "; ".join(missed)))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())

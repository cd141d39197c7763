"""How long a command takes to become runs: 20,000 runs planned, validated and hashed.

Goal: under 5 seconds on one core, with models and data given so that only planning is measured.
Usage: python benchmarks/planning.py [--runs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from adversariallm.core.protocols import DatasetInfo, Needs
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets import Dataset, DatasetConfig
from adversariallm.runs.plan import ModelFacts, Sources, plan
from adversariallm.runs.settings import read

GOAL_S = 5.0
ITEMS = 200


def sources() -> Sources:
    """A model and a dataset that cost nothing to look up."""
    behaviors = tuple(
        Behavior(f"b{i}", Conversation.user(f"ask {i}"), f"ask {i}", harmful=True, target="Sure")
        for i in range(ITEMS)
    )
    info = DatasetInfo("given", "", "", "MIT", "harmfulness", True, ITEMS)
    data = Dataset(info, DatasetConfig(), behaviors, {"given": "0" * 64})
    return Sources(
        model=lambda name, options: ModelFacts({"weights": name}, Needs.white_box()),
        dataset=lambda name, options: data,
        judge=lambda name, options: "fingerprint",
        asset=lambda name: "0" * 64,
    )


def measure(num_runs: int) -> dict[str, float]:
    """Seconds of processor time for a sweep over models, attacks and seeds."""
    seeds = max(1, num_runs // (ITEMS * 4))
    arguments = [
        "model=a,b", "dataset=starter_harmful", "attack=direct,random_search",
        f"seed=range({seeds})", "budget.queries=1000",
    ]  # fmt: skip
    given = sources()
    plan(read([*arguments[:3], "seed=0"]), given)  # imports
    start = time.process_time()
    found = plan(read(arguments), given)
    seconds = time.process_time() - start
    return {
        "runs": len(found.todo),
        "seconds": seconds,
        "ms_per_run": 1e3 * seconds / len(found.todo),
    }


def main() -> int:
    """Print the table; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"planning about {options.runs} runs, a few seconds")
    found = measure(options.runs)
    print(f"{'runs':>8} {'seconds':>8} {'ms/run':>8}")
    print(f"{found['runs']:8.0f} {found['seconds']:8.2f} {found['ms_per_run']:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(found))
    allowed = GOAL_S * max(1.0, options.runs / 20_000)
    met = found["seconds"] < allowed
    verdict = "met" if met else "MISSED"
    print(f"planning: {found['seconds']:.2f} s of {allowed:.0f} s allowed, {verdict}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())

"""The demo: a small real model, plain and guarded, under three attacks, judged and reported.

`make demo` runs it. Everything is kept in out/demo, so that a second call goes on where the first
one was stopped. Usage: python examples/demo.py [OUT]
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from adversariallm.cli._console import Reporter, console, duration, say
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation
from adversariallm.models.card import find_card
from adversariallm.reporting import read_documents, summarize, write_report
from adversariallm.runs.campaign import preview, run
from adversariallm.runs.plan import Plan
from adversariallm.runs.worker import Workshop

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

PLAIN, GUARDED = "smollm2-135m", "smollm2-guarded"
SETS = ("starter_harmful", "starter_benign", "starter_utility")
NEW_TOKENS = 32
SEARCHES = {
    "random_search": {"num_steps": 8, "num_candidates": 8},
    "gcg": {"num_steps": 4, "search_width": 32},
}
BEHAVIORS = 8


def commands(out: str) -> list[list[str]]:
    """The commands of the demo, as a user would type them after `adversariallm run`."""
    guarded = find_card(GUARDED) is not None
    attacked = GUARDED if guarded else PLAIN
    models = f"{PLAIN},{GUARDED}" if guarded else PLAIN
    common = [f"generation_config.max_new_tokens={NEW_TOKENS}", f"out={out}"]
    found = [[f"model={models}", f"dataset={','.join(SETS)}", "attack=direct", *common]]
    for attack, options in SEARCHES.items():
        if attack not in ATTACKS.names():
            continue
        found.append(
            [
                f"model={attacked}", "dataset=starter_harmful",
                f"datasets.starter_harmful.idx=range(0,{BEHAVIORS})", f"attack={attack}",
                *(f"attacks.{attack}.{k}={v}" for k, v in options.items()), *common,
            ]
        )  # fmt: skip
    return found


def estimate(workshop: Workshop, plans: list[Plan]) -> float:
    """Seconds that the runs will take, from a short measurement of this model on this machine."""
    first = next(r.task.spec.models[0] for p in plans for r in p.todo)
    model = workshop.model(first)
    talks = [Conversation.user(f"Describe a garden with {n} trees.") for n in range(8)]
    rngs = [Rng.root(n) for n in range(8)]
    model.generate(talks, GenerationConfig(max_new_tokens=1), rngs)  # the first call warms up
    model.generate(talks, GenerationConfig(max_new_tokens=2), rngs)  # warm up
    start = time.perf_counter()
    model.generate(talks, GenerationConfig(max_new_tokens=1), rngs)
    prefilled = time.perf_counter()
    model.generate(talks, GenerationConfig(max_new_tokens=9), rngs)
    end = time.perf_counter()
    per_input = (prefilled - start) / 8
    per_token = max(end - prefilled - (prefilled - start), 0.0) / 64
    inputs = tokens = 0.0
    for planned in plans:
        for run_ in planned.todo:
            options = run_.task.spec.attack.options
            steps = 1 + options.get("num_steps", 0)
            width = options.get("num_candidates", options.get("search_width", 0))
            inputs += steps * (1 + width / 2)  # candidates share what stands before the slot
            tokens += steps * run_.task.spec.generation.max_new_tokens
    return inputs * per_input + tokens * per_token


def main(out: str = "out/demo") -> int:
    """Run the demo; 0 where every run ended well."""
    start = time.monotonic()
    todo = commands(out)
    plans = [preview(*arguments) for arguments in todo]
    workshop = Workshop()
    if any(p.todo for p in plans):
        say("measuring this machine for an estimate ...")
        seconds = estimate(workshop, plans)
        say(f"{sum(len(p.todo) for p in plans)} runs, about {duration(seconds)} on this machine")
    code = 0
    for arguments in todo:
        say(f"\nadversariallm run {shlex.join(arguments)}")
        with Reporter() as reporter:
            finished = run(*arguments, watcher=reporter, workshop=workshop)
        code = max(code, finished.exit_code)
    documents = read_documents(out)
    console().print(summarize(documents).to_rich())
    report = write_report(documents, Path(out) / "report.html")
    say(f"{duration(time.monotonic() - start)} in all, report: {report.absolute()}")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""What it costs to answer every step of a GCG run, beside the search itself.

Two runs through the whole package: one with a wide search, for the cost of a candidate, and one
with many cheap steps, for that of a gradient and of a completion (answers of different steps share
batches, as they do in a long run). The share for `--steps` steps of `--width` candidates is
computed from these, and the output says so. Seconds are processor seconds, which other work on the
machine stretches less.

    python benchmarks/completions.py [--measured-width 128] [--completions 48] [--json FILE]

With `--whole` nothing is computed from parts: one run of `--steps` steps of `--width` candidates,
every step answered, whose own two shares are printed.

    python benchmarks/completions.py --whole --width 8 --new-tokens 64
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from adversariallm.core.budget import Ledgers
from adversariallm.runs.campaign import preview
from adversariallm.runs.execute import Event, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.worker import Workshop

FEW = 2  # candidates of the cheap steps


def measure(
    workshop: Workshop, model: str, width: int, steps: int, new_tokens: int, which: str
) -> dict[str, Any]:
    """Processor seconds and FLOPs of one run, apart for search and completions."""
    with tempfile.TemporaryDirectory() as out:
        (planned,) = preview(
            f"model={model}", "dataset=starter_harmful", "datasets.starter_harmful.idx=0",
            "attack=gcg", f"attacks.gcg.num_steps={steps}", f"attacks.gcg.search_width={width}",
            f"generation_config.max_new_tokens={new_tokens}", f"completions={which}", f"out={out}",
        ).todo  # fmt: skip
    clocks: list[tuple[str, float]] = []
    resources = workshop.resources(planned.task)  # loading the model is no part of either share
    began = time.process_time()

    def watch(event: Event) -> None:
        clocks.append((event.kind, time.process_time()))

    document, _ = execute(planned.task, resources, MemoryLog(), on_event=watch)
    at = [clock for kind, clock in clocks if kind == "step"]
    ledgers = Ledgers.from_dict(document.ledgers)
    search_flops = ledgers.total("optimization").flops or 0
    answers = [len(c.ids or ()) for s in document.runs[0].steps for c in s.completions]
    return {
        # the first steps learn the vocabulary and fill the prefix; the last ones are typical
        "step_seconds": (at[-1] - at[1]) / (len(at) - 2),
        "step_flops": search_flops / steps,
        "search_seconds": at[-1] - began,
        "search_flops": search_flops,
        "completions": len(answers),
        "tokens": sum(answers) / len(answers) if answers else 0.0,
        "completion_seconds": (clocks[-1][1] - at[-1]) / max(1, len(answers)),
        "completion_flops": (ledgers.total("sampling").flops or 0) / max(1, len(answers)),
    }


def at_width(width: int, measured: int, cost: float, few: float) -> float:
    """Cost of a step of `width` candidates, from steps of `measured` and of `FEW` candidates."""
    return few + (width - FEW) * (cost - few) / (measured - FEW)


def whole(workshop: Workshop, args: argparse.Namespace) -> dict[str, Any]:
    """One run at the size asked for, with its own shares."""
    print(f"about {args.steps * (0.5 + args.width * 0.1) / 60 + 4:.0f} minutes of one core")
    found = measure(workshop, args.model, args.width, args.steps, args.new_tokens, "all")
    count = found["completions"]
    parts = {
        unit: (found[f"search_{unit}"], count * found[f"completion_{unit}"])
        for unit in ("seconds", "flops")
    }
    shares = {unit: answers / (search + answers) for unit, (search, answers) in parts.items()}
    print(
        f"{args.steps} steps of {args.width} candidates: {parts['seconds'][0]:.0f} s and "
        f"{parts['flops'][0]:.3g} FLOPs of search; {count} completions ({found['tokens']:.0f} "
        f"tokens each, limit {args.new_tokens}): {parts['seconds'][1]:.0f} s and "
        f"{parts['flops'][1]:.3g} FLOPs; load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"completions: {shares['seconds']:.1%} of seconds and {shares['flops']:.1%} of FLOPs of "
        "this whole run, all answered"
    )
    return {"whole": found, "shares": shares, "load": os.getloadavg()[0]}


def from_parts(workshop: Workshop, args: argparse.Namespace) -> dict[str, Any]:
    """Both costs from short runs, and the shares of the run asked for."""
    minutes = (args.measured * args.measured_width * 0.15 + args.completions * 3) / 60
    print(f"about {minutes:.0f} minutes of one core with SmolLM2-135M")
    search = measure(
        workshop, args.model, args.measured_width, args.measured, args.new_tokens, "none"
    )
    print(f"a step of {args.measured_width} candidates: {search['step_seconds']:.1f} s")
    answer = measure(workshop, args.model, FEW, args.completions - 1, args.new_tokens, "all")
    print(
        f"a step of {FEW} candidates: {answer['step_seconds']:.2f} s; a completion: "
        f"{answer['completion_seconds']:.2f} s (mean of {answer['completions']}, "
        f"{answer['tokens']:.0f} tokens each, limit {args.new_tokens})"
    )
    step = {
        unit: at_width(args.width, args.measured_width, search[unit], answer[unit])
        for unit in ("step_seconds", "step_flops")
    }
    count = args.steps + 1
    seconds = (args.steps * step["step_seconds"], count * answer["completion_seconds"])
    flops = (args.steps * step["step_flops"], count * answer["completion_flops"])
    shares = {"seconds": seconds[1] / sum(seconds), "flops": flops[1] / sum(flops)}
    print(
        f"extrapolated from {args.measured} steps of {args.measured_width} candidates, "
        f"{args.completions - 1} of {FEW}, and {answer['completions']} completions; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"completions: {shares['seconds']:.1%} of seconds and {shares['flops']:.1%} of FLOPs "
        f"of a run of {args.steps} steps of {args.width} candidates, all answered"
    )
    return {"search": search, "answer": answer, "shares": shares, "load": os.getloadavg()[0]}


def main() -> int:
    """Print both costs and the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--width", type=int, default=512, help="candidates per step")
    parser.add_argument("--measured-width", type=int, default=512, help="candidates measured")
    parser.add_argument("--steps", type=int, default=250, help="steps that the share is about")
    parser.add_argument("--measured", type=int, default=3, help="steps measured at that width")
    parser.add_argument("--completions", type=int, default=48, help="completions measured")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--whole", action="store_true", help="run it all, compute nothing")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    workshop = Workshop()
    found = whole(workshop, args) if args.whole else from_parts(workshop, args)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

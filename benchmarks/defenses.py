"""What each defense does to GCG, to harmless questions and to the bill, on the small guarded model.

    python benchmarks/defenses.py [--out DIR] [--first N] [--behaviors N] [--steps N] [--width N]
                                  [--plain N] [--tokens N] [--defenses NAME ...]
                                  [--adaptive NAME ...] [--json FILE]
                                  [--only search|transfer|plain|adaptive ...]

The behaviors are refused ones with the lowest starting loss, so that searches of a size for one CPU
can succeed. Suffixes are found on the bare model (`search`), sent to the defended one (`transfer`:
the unaware attacker), and found through the defense where its gradients pass (`adaptive`). Requests
as they are, harmful and harmless, are asked behind every defense (`plain`). All parts can be
stopped and repeated; what is stored in DIR is not done again. Goals: fewer of the suffixes that
work on the bare model work behind SmoothLLM and behind the perplexity filter; the adaptive attacker
gets more through the perplexity filter than the unaware one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from adversariallm.reporting.load import read_documents
from adversariallm.reporting.safety import safety_utility
from adversariallm.reporting.tables import Table
from adversariallm.runs.campaign import run
from adversariallm.runs.passes import transfer
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop

MODEL = "smollm2-guarded"
DEFENSES = (
    "system_prompt", "self_reminder", "in_context", "retokenize", "smooth_llm", "perplexity_filter",
)  # fmt: skip
EASIEST = (7, 9, 5, 0, 24, 39, 29, 28)
"""Items of `starter_harmful` that the model refuses, by the loss of their target at the start."""
ADAPTIVE = ("perplexity_filter", "system_prompt")
PARTS = ("search", "transfer", "plain", "adaptive")
GCG = "attack_success/starter_harmful/gcg/refusal_prefix"


def shared(arguments: argparse.Namespace) -> list[str]:
    """What all commands say."""
    return [f"out={arguments.out}", f"generation_config.max_new_tokens={arguments.tokens}"]


def searching(arguments: argparse.Namespace) -> list[str]:
    """A GCG run that ends once an answer is no refusal."""
    items = EASIEST[arguments.first : arguments.first + arguments.behaviors]
    return [
        f"model={MODEL}",
        "dataset=starter_harmful",
        f"datasets.starter_harmful.idx={list(items)}",
        "attack=gcg",
        f"attacks.gcg.num_steps={arguments.steps}",
        f"attacks.gcg.search_width={arguments.width}",
        "attacks.gcg.topk=64",
        "stopping.judge=refusal_prefix",
        "judge=refusal_prefix",
        "timing=exclusive",
        *shared(arguments),
    ]


def plain(arguments: argparse.Namespace) -> list[list[str]]:
    """Harmful requests, benign ones and questions with an answer key, defended and not."""
    every = ["none", *arguments.defenses]
    chosen = f"range(0,{arguments.plain})"
    common = [f"model={MODEL}", "attack=direct", f"defense={','.join(every)}"]
    return [
        [*common, f"dataset={name}", f"datasets.{name}.idx={chosen}", *shared(arguments)]
        for name in ("starter_harmful", "starter_benign", "starter_utility")
    ]


def found_on_the_bare_model(out: Path) -> list[str]:
    """Ids of the stored searches without a defense."""
    store = Store(out)
    configs = {run_id: store.header(run_id)["config"] for run_id in store.runs()}
    return [i for i, c in configs.items() if c["attack"]["name"] == "gcg" and not c.get("defense")]


def do(part: str, arguments: argparse.Namespace, workshop: Workshop) -> None:
    """One part."""
    if part == "search":
        run(*searching(arguments), workshop=workshop)
    elif part == "transfer":
        names = ",".join(arguments.defenses)
        transfer(
            f"defense={names}", "completions=last", "judge=refusal_prefix", f"out={arguments.out}",
            runs=found_on_the_bare_model(arguments.out), workshop=workshop,
        )  # fmt: skip
    elif part == "adaptive":
        for name in arguments.adaptive:
            words = [f"defense={name}", "knowledge=adaptive"]
            run(*searching(arguments), *words, workshop=workshop)
    else:
        for words in plain(arguments):
            run(*words, workshop=workshop)


def rates(table: Table) -> dict[tuple[str, str], Any]:
    """Success of GCG by defense and knowledge."""
    return {(r["defense"], r["knowledge"]): r[GCG] for r in table.rows if r.get(GCG) is not None}


def missed(found: dict[tuple[str, str], Any]) -> list[str]:
    """Goals that were measured and not met."""
    out = []
    bare = found.get(("", ""))
    for name in ("smooth_llm", "perplexity_filter"):
        behind = found.get((name, "unaware"))
        if bare is not None and behind is not None and not behind.value < bare.value:
            out.append(f"{name} does not lower the success of suffixes found on the bare model")
    unaware, adaptive = (found.get(("perplexity_filter", k)) for k in ("unaware", "adaptive"))
    if unaware is not None and adaptive is not None and not adaptive.value > unaware.value:
        out.append("the adaptive attacker gets no more through the perplexity filter")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/defenses"))
    parser.add_argument("--behaviors", type=int, default=len(EASIEST))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--plain", type=int, default=20)
    parser.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    parser.add_argument("--adaptive", nargs="*", default=list(ADAPTIVE))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    workshop, seconds = Workshop(), {}
    for part in arguments.only:
        started = time.perf_counter()
        do(part, arguments, workshop)
        seconds[part] = time.perf_counter() - started
        print(f"{part}: {seconds[part]:.0f} s")
    documents = read_documents(arguments.out)
    table = safety_utility(documents, separate=True)
    print(table.to_markdown())
    goals = missed(rates(table))
    if arguments.json is not None:
        rows = [{c.key: c.show(row) for c in table.columns} for row in table.rows]
        row = {"rows": rows, "seconds": seconds, "missed": goals}
        arguments.json.write_text(json.dumps(row, indent=1), encoding="utf-8")
    print(f"{len(table.rows)} rows; goals missed: {'; '.join(goals) or 'none'}")
    return int(bool(goals))


if __name__ == "__main__":
    raise SystemExit(main())

"""One line per discrete or white-box attack on SmolLM2: what it reached, and what that cost.

Each attack is one `adversariallm run` with options cut down to a CPU (`CASES`); finished runs stay
in the store, so that the same command goes on where it stopped. The line gives the loss at the
start, the lowest and the last one; steps; queries of the search; FLOPs by ledger; the share of
recorded inputs whose text gives exactly their ids, and of candidates that passed the filter.

    python benchmarks/attack_lines.py [--work DIR] [--only NAME ...] [--json FILE]

`autodan` reads its seeds and WordNet, `gcg_refusal` its instructions from the cache of assets;
where they are missing the line says so. Exit status 1: a recorded input is not reachable, or a
search that should lower its loss did not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adversariallm.cli._app import main as adversariallm
from adversariallm.core.types import Conversation
from adversariallm.models.card import get_card
from adversariallm.models.loading import load_chat
from adversariallm.reporting.load import read_documents
from adversariallm.tokenization import ChatTokenizer

SHORT = {"num_steps": 20, "search_width": 16, "topk": 64}
PEOPLE = {"num_steps": 5, "population": 4, "num_elites": 0.25, "mutation": 0}
# attack, options and what else is typed; each takes SmolLM2 about a minute of one idle core
CASES: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "direct": ("direct", {}, ()),
    "prefilling": ("prefilling", {}, ()),
    "random_search": ("random_search", {"num_steps": 20, "num_candidates": 16}, ()),
    "gcg": ("gcg", SHORT, ()),
    "gcg_universal": (
        "gcg_universal",
        {**SHORT, "num_steps": 5, "search_width": 8, "progressive": "false"},
        ("datasets.starter_harmful.idx=range(0,2)", "held_out=2"),
    ),
    "gcg_reinforce": (
        "gcg_reinforce",
        {
            **SHORT,
            "num_steps": 4,
            "search_width": 8,
            "generation_length": 24,
            "judged_lengths": "[8,16]",
        },
        ("model=smollm2-guarded", "reward=refusal_prefix"),
    ),
    "gcg_refusal": (
        "gcg_refusal",
        {
            "num_train": 8,
            "num_validation": 4,
            "refusal_tokens": "[I,Sorry]",
            "max_divergence": 0.5,  # no direction of this model is within the paper's 0.1
            "max_target_tokens": 16,
            "gcg": "{num_steps:6,search_width:16,topk:64}",
        },
        # the first refused item that is answered once the direction is ablated
        ("model=smollm2-guarded", "datasets.starter_harmful.idx=4"),
    ),
    "ample_gcg": (
        "ample_gcg",
        {"num_suffixes": 6, "num_tokens": 8},
        ("helpers.prompter=smollm2-135m",),
    ),
    "autodan ga": ("autodan", PEOPLE, ("helpers.mutator=smollm2-135m",)),
    "autodan hga": (
        "autodan",
        {**PEOPLE, "variant": "hga"},
        ("helpers.mutator=smollm2-135m",),
    ),
    "beast": ("beast", {"num_tokens": 8, "k1": 4, "k2": 4}, ()),
    "pgd": ("pgd", {"num_steps": 10}, ()),
    "pgd_discrete": ("pgd_discrete", {"num_steps": 10}, ()),
}
LOWERS = ("gcg", "gcg_refusal", "beast", "random_search", "pgd")  # must end below the start
LEDGERS = ("setup", "optimization", "sampling", "diagnosis")


def command(name: str, store: Path) -> list[str]:
    """The words of one run, as a person would type them."""
    attack, options, more = CASES[name]
    words = [
        "run",
        "model=smollm2-135m",
        "dataset=starter_harmful",
        "datasets.starter_harmful.idx=0",
        "generation_config.max_new_tokens=32",
        f"attack={attack}",
        *(f"attacks.{attack}.{key}={value}" for key, value in options.items()),
        *more,
        f"out={store}",
        "--quiet",
    ]
    typed = {word.split("=", 1)[0]: word for word in words}  # a later one replaces an earlier one
    return list(typed.values())


def carry_out(name: str, store: Path) -> tuple[str | None, float]:
    """Run one case in its own store; the reason where it could not be, and the seconds."""
    began = time.monotonic()
    status = adversariallm(command(name, store))
    return (f"ended with status {status}" if status else None), time.monotonic() - began


def line(
    name: str, document: Mapping[str, Any], chats: Mapping[str, ChatTokenizer]
) -> dict[str, Any]:
    """What one stored run says."""
    steps = document["runs"][0]["steps"]
    chat = chats[document["resolved"]["models"][0]["name"]]
    everything = [s for run in document["runs"] for s in run["steps"] if s["model_input"]]
    exact = [
        list(chat.encode(Conversation.from_dicts(s["model_input"]))) == s["model_input_tokens"]
        for s in everything
    ]
    losses = [s["loss"] for s in steps if s["loss"] is not None]
    sampled = sum(s["note"].get("sampled", 0) for s in steps)
    kept = sum(s["note"].get("kept", 0) for s in steps)
    ledgers = document["ledgers"]
    return {
        "attack": name,
        "status": document["status"],
        "loss": [losses[0], min(losses), losses[-1]] if losses else None,
        "steps": len(steps) - 1,
        "queries": sum(
            use.get("queries", 0)
            for phase in ("setup", "optimization")
            for use in ledgers.get(phase, {}).values()
        ),
        "flops": {
            phase: sum(use.get("flops") or 0 for use in ledgers.get(phase, {}).values())
            for phase in LEDGERS
        },
        "reachable": sum(exact) / len(exact) if exact else None,
        "kept": kept / sampled if sampled else None,
    }


def show(row: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "missing" in row:
        return f"{row['attack']:14s} {row['missing']}"
    losses = " ".join(f"{x:6.3f}" for x in row["loss"]) if row["loss"] else "-"
    flops = " ".join(f"{row['flops'][phase] / 1e9:9.1f}" for phase in LEDGERS)
    reachable, kept = (
        "-" if x is None else f"{100 * x:.1f}" for x in (row["reachable"], row["kept"])
    )
    start = f"{row['attack']:14s} {losses:>20s} {row['steps']:5d} {row['queries']:8d}"
    return f"{start} {flops} {reachable:>6s} {kept:>6s}"


def main() -> int:
    """Run what is not in the store yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("out/attack_lines"))
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("adversariallm").setLevel(logging.ERROR)
    print(f"{len(args.only)} attacks, about {len(args.only)} minutes on one idle core", flush=True)
    names = ("smollm2-135m", "smollm2-guarded")
    chats = {name: load_chat(get_card(name)) for name in names}
    rows: list[dict[str, Any]] = []
    for name in args.only:
        store = args.work / name.replace(" ", "-")
        problem, seconds = carry_out(name, store)
        found = read_documents(store) if store.is_dir() else []
        row = {"attack": name, "missing": problem or "no run"} if not found else {
            **line(name, found[-1], chats), "seconds": seconds
        }  # fmt: skip
        rows.append(row)
        print(show(row), f"  ({seconds:.0f} s)", flush=True)
    print(f"\n{'attack':14s} {'loss start/low/end':>20s} steps  queries "
          f"{'GFLOPs set-up, search, sampling, diagnosis':>39s} reach%  kept%")  # fmt: skip
    for row in rows:
        print(show(row))
    done = [r for r in rows if "missing" not in r]
    unreachable = [r["attack"] for r in done if r["reachable"] not in (None, 1.0)]
    raised = [r["attack"] for r in done if r["attack"] in LOWERS and r["loss"][1] >= r["loss"][0]]
    print(f"{len(done)} of {len(rows)} attacks; not reachable: {unreachable or 'none'}; "
          f"loss not lowered: {raised or 'none'}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(bool(unreachable or raised))


if __name__ == "__main__":
    sys.exit(main())

"""What the checks of retokenization reject among the candidates of real GCG runs.

Every candidate that short GCG runs propose is checked in two ways: alone (decode, encode), as
llm-attacks, HarmBench and nanoGCG do, and in the whole conversation, as this package does. A run is
affected where the second rejects something that the first lets through. The last column is what
that does: the same runs with the isolated check only, whose last suffix no text produces.

SmolLM2 is the real model; the other tokenizers come with small random models of their vocabulary,
so that gradients are real. Two starts: glued to the request, and joined by a blank.

    python benchmarks/reachability.py [--runs 20] [--work DIR] [--json FILE]

Finished runs are kept in DIR; the same command goes on where it stopped. Exit status 1: a recorded
text of a run with the whole-conversation check does not give its ids.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adversariallm.attacks import gcg
from adversariallm.core.budget import Budget, Meter
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Context
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Segments, Task
from adversariallm.datasets import starter_harmful
from adversariallm.models.loading import load_model
from adversariallm.models.local import LocalModel
from adversariallm.models.metered import MeteredModel
from adversariallm.tokenization import ChatTokenizer, load_tokenizer

REAL = "smollm2"
DEFAULT = (REAL, "llama3_1", "qwen3", "gemma3", "mistral_v3_spm")
TEMPLATES = {"llama2": "llama-2", "mistral_v1_spm": "mistral-v1", "mistral_v3_spm": "mistral-v3"}
STARTS: dict[str, dict[str, Any]] = {
    "glued": {"initial": " ".join("x" * 20), "join": "none"},
    "blank": {"initial": " ".join("!" * 20), "join": "space"},
}


class Watched:
    """An object with some attributes replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        """Show `inner` with `replaced`."""
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        """Whatever was not replaced."""
        return getattr(self._inner, name)


def random_model(chat: ChatTokenizer, seed: int) -> LocalModel:
    """A small random Llama with the vocabulary of a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(chat.tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # wide enough that losses differ between candidates
                parameter.mul_(2.0 / (parameter.std() * parameter.shape[-1] ** 0.5))
    return LocalModel.from_parts(model.eval().requires_grad_(False), chat, name="random")


def subject(name: str, folder: Path) -> LocalModel:
    """The model of one tokenizer."""
    if name == REAL:
        model = load_model("smollm2-135m")
        assert isinstance(model, LocalModel)
        return model
    return random_model(ChatTokenizer(load_tokenizer(folder / name), TEMPLATES.get(name)), 0)


def search(
    model: LocalModel, behavior: Behavior, options: dict[str, Any], seed: int
) -> tuple[list[list[int]], list[bool], bool]:
    """Candidates of one run, the whole-conversation verdicts, and whether its last text holds."""
    proposed: list[list[int]] = []
    verdicts: list[bool] = []

    def reachability(segments: Segments) -> Any:
        real = model.chat.reachability(segments)

        def check(candidates: Any) -> Any:
            found = real(candidates)
            proposed.extend(candidates.tolist())
            verdicts.extend(found.kept)
            return found

        return check

    watched = Watched(model, chat=Watched(model.chat, reachability=reachability))
    meter = Meter(Budget())
    ctx = Context(
        models=(MeteredModel(watched, meter),),
        rng=Rng.root(seed).child("reachability", behavior.id),
        meter=meter,
        generation=GenerationConfig(),
        log=lambda **values: None,
    )
    with meter.phase("optimization"):
        *_, last = gcg.Attack(gcg.Config(**options)).search(Task((behavior,)), ctx)
    given = last.inputs[0]
    assert given.conversation is not None
    holds = model.chat.encode(given.conversation) == given.ids
    return proposed, verdicts, holds


def alone(chat: ChatTokenizer, rows: Sequence[Sequence[int]]) -> list[bool]:
    """Whether each row survives decoding and encoding by itself."""
    encoded = chat.codec.encode_batch(chat.codec.decode_batch([list(r) for r in rows]))
    return [list(e) == list(r) for e, r in zip(encoded, rows, strict=True)]


def run(
    model: LocalModel, behavior: Behavior, start: str, number: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Counts of one pair of runs, with either check."""
    options = {
        **STARTS[start],
        "num_steps": args.steps,
        "search_width": args.width,
        "position_sampling": "uniform",
    }
    rows, whole, holds = search(model, behavior, options, number)
    isolated = alone(model.chat, rows)
    pairs = list(zip(isolated, whole, strict=True))
    _, _, theirs = search(model, behavior, {**options, "filter": "isolated"}, number)
    return {
        "candidates": len(rows),
        "isolated": isolated.count(False),
        "additional": pairs.count((True, False)),
        "lost": pairs.count((False, True)),
        "holds": holds,
        "isolated_holds": theirs,
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table."""
    total = sum(r["candidates"] for r in runs)
    return {
        "runs": len(runs),
        "candidates": total,
        "isolated": sum(r["isolated"] for r in runs) / total,
        "additional": sum(r["additional"] for r in runs) / total,
        "lost": sum(r["lost"] for r in runs) / total,
        "affected": sum(r["additional"] > 0 for r in runs) / len(runs),
        "worst": max(r["additional"] / r["candidates"] for r in runs),
        "unreachable_ours": sum(not r["holds"] for r in runs) / len(runs),
        "unreachable_isolated": sum(not r["isolated_holds"] for r in runs) / len(runs),
    }


def fill(args: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All runs, those that are kept read and the others made."""
    behaviors = list(starter_harmful.load(starter_harmful.Config()))
    out: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in args.only:
        model: LocalModel | None = None
        for start in STARTS:
            for number in range(args.runs):
                made = f"{name}-{start}-{number}-w{args.width}-s{args.steps}.json"
                file = args.work / made
                if not file.exists():
                    model = model or subject(name, args.tokenizers)
                    begun = time.monotonic()
                    behavior = behaviors[number % len(behaviors)]
                    half = file.with_suffix(".half")
                    half.write_text(json.dumps(run(model, behavior, start, number, args)))
                    half.replace(file)
                    line = f"{made}: {time.monotonic() - begun:.1f} s"
                    print(line, file=sys.stderr, flush=True)
                row = json.loads(file.read_text(encoding="utf-8"))
                out.setdefault((name, start), []).append(row)
    return out


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = Path(__file__).resolve().parents[2] / "shared" / "data"
    data = Path(os.environ.get("ADVERSARIALLM_DATA", root)) / "tokenizers"
    parser.add_argument("--tokenizers", type=Path, default=data, help="folder of tokenizer folders")
    parser.add_argument("--only", nargs="+", default=list(DEFAULT), help="names of tokenizers")
    parser.add_argument("--runs", type=int, default=10, help="runs per tokenizer and start")
    parser.add_argument("--width", type=int, default=16, help="candidates per step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("out/reachability"))
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> int:
    """Print the table; 1 where one of our own last suffixes is unreachable."""
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    count = args.runs * len(STARTS)
    print(
        f"{count} runs for each of {len(args.only)} tokenizers, {args.width} candidates x "
        f"{args.steps} steps, made twice; about 1 s for a run with a random model and "
        f"{args.steps * args.width / 12:.0f} s with SmolLM2"
    )
    rows = {key: summarize(runs) for key, runs in fill(args).items()}
    print(
        f"{'tokenizer':16}{'start':7}{'runs':>5}{'candidates':>11}{'isolated':>9}{'+whole':>8}"
        f"{'affected':>9}{'worst':>7}{'lost':>7}{'last unreachable: ours':>24}{'isolated':>10}"
    )
    for (name, start), r in rows.items():
        print(
            f"{name:16}{start:7}{r['runs']:5}{r['candidates']:11}{r['isolated']:9.1%}"
            f"{r['additional']:8.1%}{r['affected']:9.0%}{r['worst']:7.0%}{r['lost']:7.1%}"
            f"{r['unreachable_ours']:24.0%}{r['unreachable_isolated']:10.0%}"
        )
    print(
        "isolated: rejected alone; +whole: rejected in the conversation only; affected: runs with"
    )
    print("such a candidate; worst: their largest share in a run; lost: reachable, rejected alone")
    if args.json:
        table = [{"tokenizer": n, "start": s, **r} for (n, s), r in rows.items()]
        args.json.write_text(json.dumps(table, indent=1), encoding="utf-8")
    bad = [key for key, r in rows.items() if r["unreachable_ours"] > 0]
    runs = sum(r["runs"] for r in rows.values())
    verdict = (
        f"MISSED: unreachable texts of ours: {bad}" if bad else "goal met: all texts of ours hold"
    )
    print(f"reachability: {verdict} ({runs} runs)")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())

"""Tokens per second against the library's `generate`, at equal outputs, on SmolLM2.

Three cases: ragged prompts with natural stops, many samples of one long prompt, equal lengths
without stops. Also peak memory of generating 16 x 256 tokens, each in a process of its own.

    python benchmarks/generation.py [--model DIR] [--threads N] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from small_model import cached_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import logging as transformers_logging

from adversariallm.core.generation import GenerationConfig as Options
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, Request

QUESTIONS = [
    "Say hello.", "What is two plus two?", "Name a color.", "Is the sky blue? Answer yes or no.",
    "Name three fruits.", "What is the capital of France?", "Write one short sentence about tea.",
    "Translate 'thank you' to Spanish.", "What do bees make?", "How many days has a week?",
    "Give me a word that rhymes with cat.", "Who wrote Hamlet?", "What is the opposite of hot?",
    "Name a musical instrument.", "Spell the word dog.", "Explain in two sentences how rain forms.",
]  # fmt: skip
GOALS = {"ragged, natural stops": 1.5, "50 samples of one prompt": 3.0, "equal lengths": 0.9}


class Contest:
    """One model, two ways to generate."""

    def __init__(self, path: str, threads: int) -> None:
        """Load the model and check the machine."""
        torch.set_num_threads(threads)
        transformers_logging.set_verbosity_error()
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.stop = self.tokenizer.eos_token_id
        self.engine = Engine(self.model)

    def prompts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Chat prompts as ids."""
        out = []
        for text in texts:
            rendered = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            out.append(tuple(self.tokenizer(rendered, add_special_tokens=False)["input_ids"]))
        return out

    def library(
        self, prompts: Sequence[Sequence[int]], count: int, *, stop: bool, sample: bool = False
    ) -> list[list[int]]:
        """The library's batched `generate`, with left padding."""
        length = max(map(len, prompts))
        ids = torch.full((len(prompts), length), self.stop)
        mask = torch.zeros_like(ids)
        for i, p in enumerate(prompts):
            ids[i, length - len(p) :] = torch.tensor(p)
            mask[i, length - len(p) :] = 1
        # without an id of its own the library would take the stop ids of the model
        config = GenerationConfig(
            max_new_tokens=count, do_sample=sample, eos_token_id=self.stop if stop else -1,
            pad_token_id=self.stop,
        )  # fmt: skip
        rows = self.model.generate(ids, attention_mask=mask, generation_config=config)
        return [self._cut(r, stop) for r in rows[:, length:].tolist()]

    def _cut(self, ids: list[int], stop: bool) -> list[int]:
        return ids[: ids.index(self.stop) + 1] if stop and self.stop in ids else ids

    def ours(
        self, prompts: Sequence[Sequence[int]], count: int, *, stop: bool, sample: bool = False
    ) -> list[list[int]]:
        """The engine."""
        options = Options(max_new_tokens=count, temperature=1.0 if sample else 0.0)
        stops = frozenset({self.stop}) if stop else frozenset()
        requests = [
            Request(tuple(p), generation=options, stop_ids=stops, rng=Rng.root(0).child(i))
            for i, p in enumerate(prompts)
        ]
        return [list(r.ids) for r in self.engine.generate(requests)]


def timed(call: Callable[[], list[list[int]]]) -> tuple[list[list[int]], float, float]:
    """Result, wall seconds and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def cases(contest: Contest, quick: bool) -> list[tuple[str, list[tuple[int, ...]], dict[str, Any]]]:
    """Name, prompts and options of each case."""
    few = 4 if quick else 1
    long = contest.prompts(["Tell me more about the history of bread and grain. " * 40])[0][:300]
    equal = [p[-24:] for p in contest.prompts(QUESTIONS)]
    return [
        ("ragged, natural stops", contest.prompts(QUESTIONS), {"count": 128 // few, "stop": True}),
        (
            "50 samples of one prompt", [long] * (50 // few),
            {"count": 16, "stop": False, "sample": True},
        ),
        ("equal lengths", equal, {"count": 64 // few, "stop": False}),
    ]  # fmt: skip


def peak(path: str, threads: int, who: str) -> int:
    """Largest resident memory of a process that generates 16 x 256 tokens, in MiB."""
    command = [
        sys.executable, __file__, "--model", path, "--threads", str(threads), "--peak", who,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def run_peak(contest: Contest, who: str) -> None:
    """Generate 16 x 256 tokens and print the peak."""
    prompts = contest.prompts(QUESTIONS)
    call = contest.ours if who == "ours" else contest.library
    call(prompts, 256, stop=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def main() -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct; default: the cached one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work")
    parser.add_argument("--no-memory", action="store_true", help="skip the peak memory runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = options.model or cached_model()
    if not options.peak:
        print("estimate: 2 to 4 minutes on an idle machine", flush=True)
    contest = Contest(options.model, options.threads)
    if options.peak:
        run_peak(contest, options.peak)
        return 0
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads; tokens per processor second")
    print(f"{'case':26}{'tokens':>8}{'ours':>8}{'generate':>10}{'ratio':>7}{'wall':>7}{'equal':>7}")
    rows, missed = [], 0
    for name, prompts, how in cases(contest, options.quick):
        ours, wall, cpu = timed(lambda p=prompts, h=how: contest.ours(p, **h))
        theirs, their_wall, their_cpu = timed(lambda p=prompts, h=how: contest.library(p, **h))
        equal = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        tokens = [sum(map(len, ids)) for ids in (ours, theirs)]
        rate, their_rate = tokens[0] / cpu, tokens[1] / their_cpu
        ratio, wall_ratio = rate / their_rate, (tokens[0] / wall) / (tokens[1] / their_wall)
        shown = "-" if how.get("sample") else f"{equal:.0%}"
        print(
            f"{name:26}{tokens[0]:8}{rate:8.1f}{their_rate:10.1f}{ratio:7.2f}{wall_ratio:7.2f}"
            f"{shown:>7}", flush=True,
        )  # fmt: skip
        missed += ratio < GOALS[name]
        rows.append({"case": name, "ratio": ratio, "wall_ratio": wall_ratio, "equal": equal})
    if not options.no_memory:
        peaks = {who: peak(options.model, options.threads, who) for who in ("ours", "generate")}
        print(f"peak memory of 16 x 256 tokens: ours {peaks['ours']} MiB, "
              f"generate {peaks['generate']} MiB")  # fmt: skip
        missed += peaks["ours"] > peaks["generate"]
        rows.append({"case": "peak MiB", **peaks})
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))
    print(f"generation: {'all goals met' if not missed else f'{missed} goals missed'}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

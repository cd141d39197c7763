"""Share of sequences whose logits are bitwise equal to those of batch 1, by architecture.

Tiny random models with peaked logits; prompts of 1 to 700 tokens; batches of 1 to 24 in several
orders. Beside it the paper's Table 5 measure: mean number of tokens until the first difference from
the library's unbatched `generate`, for its batched `generate` and for this engine.

    python benchmarks/invariance.py [--model DIR] [--threads N] [--json FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

import torch
from small_model import cached_model
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import logging as transformers_logging

from adversariallm.core.generation import GenerationConfig
from adversariallm.inference import Engine, Request
from adversariallm.inference.decode import Row

VOCABULARY = 512
SHARED = {
    "vocab_size": VOCABULARY, "hidden_size": 192, "intermediate_size": 384,
    "num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 1024,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
WINDOW = {**GROUPED, "sliding_window": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 2}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", GROUPED),
    "mistral": ("mistral", {**GROUPED, "sliding_window": None}),
    "mistral, window": ("mistral", WINDOW),
    "gemma2": ("gemma2", {**WINDOW, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3_text", WINDOW),
    "phi3": ("phi3", {"num_key_value_heads": 2}),
    "olmo2": ("olmo2", {"num_key_value_heads": 2}),
    "gpt_neox": ("gpt_neox", {}),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4}),
    "qwen3_moe": (
        "qwen3_moe",
        {**GROUPED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    ),
}
SMALL = "smollm2-135m"
LENGTHS = (3, 17, 700, 40, 41, 77, 1, 130, 5, 260, 33, 64, 12, 9, 512, 90, 31, 2, 220, 65, 8, 48)


def tiny(name: str, dtype: torch.dtype) -> Any:
    """A random model whose logits have the spread of a trained one's."""
    kind, extra = MODELS[name]
    config = AutoConfig.for_model(kind, **{**SHARED, **extra})
    if kind == "gemma2":
        config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.mul_(1.5)
    with torch.no_grad():
        spread = float(model(torch.arange(3, 80)[None]).logits.std())
        model.get_output_embeddings().weight.mul_(2.5 / spread)
    model.generation_config.eos_token_id = None
    return model.to(dtype)


def library(model: Any, prompts: list[tuple[int, ...]], count: int) -> list[list[int]]:
    """The library's `generate`, left-padded where there are several prompts."""
    length = max(map(len, prompts))
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, p in enumerate(prompts):
        ids[i, length - len(p) :] = torch.tensor(p)
        mask[i, length - len(p) :] = 1
    out = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
    return out[:, length:].tolist()


def agreement(left: list[int] | tuple[int, ...], right: list[int] | tuple[int, ...]) -> int:
    """Number of ids before the first difference."""
    equal = (a == b for a, b in zip(left, right, strict=True))
    return sum(1 for _ in itertools.takewhile(bool, equal))


def batches(count: int) -> list[list[int]]:
    """Which sequences run together: everything in three orders, and groups of 2, 3, 7 and 13."""
    order = list(range(count))
    shuffled = random.Random(0).sample(order, count)  # noqa: S311
    groups = [shuffled[i : i + n] for n in (2, 3, 7, 13) for i in range(0, count, n)]
    return [order, order[::-1], [*shuffled, *order[:2]], *groups[:: max(1, len(groups) // 12)]]


class Recorder:
    """Digests all logits that rows choose from."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.digests: dict[int, Any] = {}

    def __enter__(self) -> Recorder:
        """Look over the shoulder of every row."""
        self._take = Row.take
        digests, take = self.digests, self._take

        def watched(row: Row, logits: torch.Tensor) -> None:
            digests.setdefault(row.index, hashlib.sha256()).update(logits.numpy().tobytes())
            take(row, logits)

        Row.take = watched  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        """Look away."""
        Row.take = self._take  # type: ignore[method-assign]


def generate(engine: Engine, requests: list[Request]) -> list[tuple[tuple[int, ...], str]]:
    """Ids of each request and a digest of every logit it met."""
    with Recorder() as recorder:
        found = engine.generate(requests)
    return [(row.ids, recorder.digests[i].hexdigest()) for i, row in enumerate(found)]


def measure(model: Any, prompts: list[tuple[int, ...]], count: int) -> dict[str, Any]:
    """One row of the table."""
    engine = Engine(model)
    options = GenerationConfig(max_new_tokens=count, min_new_tokens=count)
    requests = [Request(p, generation=options) for p in prompts]
    alone = [generate(engine, [r])[0] for r in requests]
    equal = []
    for batch in batches(len(prompts)):
        found = generate(engine, [requests[i] for i in batch])
        equal += [a == alone[i] for a, i in zip(found, batch, strict=True)]
    single = [library(model, [p], count)[0] for p in prompts]
    batched = [
        row
        for i in range(0, len(prompts), 11)
        for row in library(model, prompts[i : i + 11], count)
    ]
    pairs = list(zip(alone, batched, single, strict=True))
    return {
        "mode": engine.report.mode,
        "equal": sum(equal) / len(equal),
        "compared": len(equal),
        "ours": statistics.mean(agreement(a[0], s) for a, _, s in pairs),
        "batched": statistics.mean(agreement(b, s) for _, b, s in pairs),
    }


def known_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What an earlier run with as many tokens left in the file named by `--json`."""
    if not options.json or not options.json.exists():
        return []
    old = json.loads(options.json.read_text())
    rows: list[dict[str, Any]] = old["rows"] if old.get("tokens") == options.tokens else []
    return rows


def shown(row: dict[str, Any], tokens: int) -> bool:
    """Print a row; whether it misses a goal."""
    share = f"{row['equal']:.1%} of {row['compared']}"
    print(
        f"{row['model']:18}{row['dtype']:>10}{row['mode']:>7}{share:>15}"
        f"{row['ours']:8.1f}{row['batched']:9.1f}", flush=True,
    )  # fmt: skip
    worse = row["ours"] < row["batched"] - 1e-9
    return row["equal"] < 1 or worse or (row["dtype"] == "float32" and row["ours"] < tokens)


def main() -> int:
    """Print the table; 1 where a sequence differed or the library's batches agree better."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct; default: the cached one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=[*MODELS, SMALL], help="rows of the table")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    generator = torch.Generator().manual_seed(1)
    prompts = [
        tuple(torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()) for n in LENGTHS
    ]
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads, {options.tokens} new tokens")
    print("until difference: mean tokens until the first difference from unbatched generate")
    print(f"{'model':18}{'type':>10}{'mode':>7}{'bitwise equal':>15}{'ours':>8}{'batched':>9}")
    rows, missed = known_rows(options), 0
    done = {(r["model"], r["dtype"]): r for r in rows}
    print(
        f"estimate: {options.tokens // 2} s for a tiny row on an idle machine, minutes for {SMALL}"
    )
    for name, kind in itertools.product(options.only, options.dtypes):
        dtype = getattr(torch, kind)
        if (name, kind) in done:
            missed += shown(done[name, kind], options.tokens)
            continue
        if name == SMALL:
            path = options.model or cached_model()
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
            model.generation_config.eos_token_id = None
            some = [tuple(prompts[i]) for i in (0, 1, 3, 5, 7, 9, 10, 11)]
        else:
            model, some = tiny(name, dtype), prompts
        row = {"model": name, "dtype": kind, **measure(model, some, options.tokens)}
        rows.append(row)
        missed += shown(row, options.tokens)
        if options.json:
            kept = {"tokens": options.tokens, "load": os.getloadavg(), "rows": rows}
            options.json.write_text(json.dumps(kept, indent=1))
    print(f"invariance: {'all goals met' if not missed else f'{missed} rows missed a goal'}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

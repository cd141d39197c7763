"""CPU and wall seconds of one GCG step: this package against nanoGCG 0.3.0, same model and threads.

nanoGCG runs twice, each with its own libraries: with the transformers it was made for (prefix cache
on) and with the current one (its cache raises there, so it is off). A step is one gradient and the
losses of `--width` candidates of a 20-token slot; the first step of every run is dropped.

    python benchmarks/candidates.py [--model DIR] [--threads N] [--json FILE]

With `--json FILE` every finished row is kept there, and the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from small_model import cached_model

ROOT = Path(__file__).resolve().parents[1]
SLOT = 20
FILLER = "Please tell me how people bake good bread at home in a small oven. "
TARGET = "Sure, here is a short and friendly guide to baking bread at home, step by step"
PINNED = ["nanogcg==0.3.0", "transformers==4.47.1", "tokenizers==0.21.4", "huggingface-hub==0.36.0"]
CURRENT = ["nanogcg==0.3.0"]
COMPARED = 8
"""Candidates whose losses are compared."""
GOALS = [("pinned", 49, 1.3), ("current", 49, 2.0), ("current", 300, 5.0)]


def message(tokenizer: Any, prefix: int) -> str:
    """A prompt that puts about `prefix` tokens before the slot."""
    text = ""
    while True:
        longer = text + FILLER
        if len(tokenizer(longer)["input_ids"]) > prefix - 30 and text:
            return text
        text = longer


def load(path: str) -> tuple[Any, Any]:
    """Model in float32 and tokenizer, with old or new transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.from_pretrained(path)
    rope = json.loads((Path(path) / "config.json").read_text()).get("rope_parameters")
    if rope and not getattr(config, "rope_parameters", None):
        config.rope_theta = rope["rope_theta"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(path) / "tokenizer.json"))
    tokenizer.chat_template = (Path(path) / "chat_template.jinja").read_text()
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.bos_token = "<|im_start|>"
    model = AutoModelForCausalLM.from_pretrained(path, config=config, torch_dtype=torch.float32)
    return model.eval(), tokenizer


def timings(starts: list[tuple[float, float]]) -> dict[str, float]:
    """Fastest step after the first, wall and processor seconds."""
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(starts, starts[1:], strict=False)][1:]
    return {"wall": min(s[0] for s in steps), "cpu": min(s[1] for s in steps)}


def now() -> tuple[float, float]:
    """Wall clock and processor time of this process."""
    return time.perf_counter(), time.process_time()


def run_nanogcg(options: argparse.Namespace) -> dict[str, Any]:
    """Time nanoGCG's own loop, from one gradient to the next."""
    import nanogcg.gcg as nano

    model, tokenizer = load(options.model)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    starts: list[tuple[float, float]] = []

    class Timed(nano.GCG):  # type: ignore[misc]
        def compute_token_gradient(self, *args: Any, **kwargs: Any) -> Any:
            starts.append(now())
            return super().compute_token_gradient(*args, **kwargs)

    config = nano.GCGConfig(
        num_steps=options.steps + 2, search_width=options.width, filter_ids=False, seed=0,
        use_prefix_cache=options.cache, verbosity="ERROR",
    )  # fmt: skip
    text = message(tokenizer, options.prefix) + "{optim_str}"
    Timed(model, tokenizer, config).run([{"role": "user", "content": text}], TARGET)
    return timings(starts)


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    """Time the same step on our engine."""
    import torch

    from adversariallm.inference import Engine

    model, tokenizer = load(options.model)
    marker = "{optim_str}"
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": message(tokenizer, options.prefix) + marker}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    before, after = (tokenizer(t)["input_ids"] for t in rendered.split(marker))
    target = tokenizer(TARGET)["input_ids"]
    slot = tokenizer(" x" * SLOT)["input_ids"]
    engine = Engine(model)
    generator = torch.Generator().manual_seed(0)
    starts = []
    prefix = engine.prefix(before)
    for _ in range(options.steps + 2):
        starts.append(now())
        found = engine.gradient(prefix, [*slot, *after], range(SLOT), target)
        shortlist = (-engine.token_scores(found.slot)).topk(256, dim=1).indices
        candidates = torch.tensor(slot).repeat(options.width, 1)
        rows = torch.arange(options.width)
        at = torch.randint(SLOT, (options.width,), generator=generator)
        pick = torch.randint(256, (options.width,), generator=generator)
        candidates[rows, at] = shortlist[at, pick]
        lists = [[*c, *after] for c in candidates.tolist()]
        losses = engine.losses(prefix, lists, [target] * options.width)
        slot = lists[int(losses.loss.argmin())][:SLOT]
    return {
        **timings(starts),
        "tokens": [len(before), len(after), len(target)],
        **errors(model, [[*before, *c] for c in lists[:COMPARED]], target, losses.loss[:COMPARED]),
        "invariant": engine.report.invariant,
    }


def errors(model: Any, inputs: list[list[int]], target: list[int], ours: Any) -> dict[str, float]:
    """Largest differences of losses: to an uncached float32 forward, and to float64.

    The loss of the float32 logits is summed in float64: torch's own float32 cross-entropy over
    49152 words is off by 2e-5 on processors with AVX2 (`library_error` shows it).
    """
    import torch
    from torch.nn.functional import cross_entropy

    wanted = torch.tensor(target)

    @torch.no_grad()
    def logits() -> list[Any]:
        count = len(target)
        return [model(torch.tensor([[*i, *target]])).logits[0, -count - 1 : -1] for i in inputs]

    single = logits()
    model.double()
    exact = torch.stack([cross_entropy(x, wanted) for x in logits()])
    plain = torch.stack([cross_entropy(x.double(), wanted) for x in single])
    library = torch.stack([cross_entropy(x, wanted) for x in single])
    return {
        "error": float((ours - plain).abs().max()),
        "our_error": float((ours - exact).abs().max()),
        "logits_error": float((plain - exact).abs().max()),
        "library_error": float((library - exact).abs().max()),
    }


def ensure(folder: Path, packages: list[str]) -> Path:
    """A folder with those packages and nothing that they need (the rest is this environment's)."""
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, str(folder), *packages], check=True)
    return folder


def measure(who: str, prefix: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one contestant in its own process."""
    paths = {
        "ours": str(ROOT / "src"),
        "pinned": str(ensure(options.oracles / "nano447", PINNED)),
        "current": str(ensure(options.oracles / "nano5", CURRENT)),
    }
    command = [
        sys.executable, __file__, "--worker", "ours" if who == "ours" else "nanogcg",
        "--model", options.model, "--prefix", str(prefix), "--width", str(options.width),
        "--steps", str(options.steps), *(["--cache"] if who == "pinned" else []),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": paths[who], "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Kept:
    """Measured rows, kept in the file named by `--json` so that a stopped run can go on."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Take up what a run with the same settings has left."""
        self.options = options
        self.settings = [options.width, options.steps, options.threads, COMPARED]
        self.found: dict[str, Any] = {}
        if options.json and options.json.exists():
            old = json.loads(options.json.read_text())
            if old.get("settings") == self.settings:
                self.found = old["measured"]

    def row(self, who: str, prefix: int) -> dict[str, Any]:
        """The row, measured now or before."""
        name = f"{who} {prefix}"
        if name not in self.found:
            self.found[name] = measure(who, prefix, self.options)
            self.save([])
        row: dict[str, Any] = self.found[name]
        return row

    def save(self, table: list[dict[str, Any]]) -> None:
        """Write what is known."""
        if self.options.json:
            kept = {"settings": self.settings, "measured": self.found}
            text = json.dumps({**kept, "load": os.getloadavg(), "rows": table}, indent=1)
            self.options.json.write_text(text)


def main() -> int:
    """Run the contest; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct; default: the cached one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1, help="steps measured after the first")
    parser.add_argument("--oracles", type=Path, default=Path(tempfile.gettempdir()) / "venvs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", type=int, default=49, help=argparse.SUPPRESS)
    parser.add_argument("--cache", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = options.model or cached_model()
    if options.worker:
        result = run_ours(options) if options.worker == "ours" else run_nanogcg(options)
        print(json.dumps(result))
        return 0
    print(
        f"estimate: {60 * (options.steps + 2)} to {120 * (options.steps + 2)} s on an idle machine"
    )
    kept = Kept(options)
    ours = {prefix: kept.row("ours", prefix) for prefix in (49, 300)}
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads, {options.width} candidates")
    print(f"{'':22}{'prefix':>7}{'wall s':>8}{'cpu s':>8}{'times faster (cpu)':>20}{'goal':>6}")
    table, missed = [], 0
    for prefix, row in ours.items():
        print(f"{'ours':22}{prefix:7}{row['wall']:8.2f}{row['cpu']:8.2f}")
        table.append({"who": "ours", "prefix": prefix, **row})
    for who, prefix, goal in GOALS:
        row = kept.row(who, prefix)
        ratio = row["cpu"] / ours[prefix]["cpu"]
        missed += ratio < goal
        name = f"nanoGCG, {who}"
        print(f"{name:22}{prefix:7}{row['wall']:8.2f}{row['cpu']:8.2f}{ratio:20.2f}{goal:6.1f}")
        table.append({"who": name, "prefix": prefix, "ratio": ratio, "goal": goal, **row})
    error = {k: max(row[k] for row in ours.values()) for k in ours[49] if k.endswith("error")}
    missed += error["error"] > 1e-5
    print(
        f"losses against float64: ours {error['our_error']:.1e}; uncached float32 forward "
        f"{error['logits_error']:.1e}, with torch's float32 cross-entropy "
        f"{error['library_error']:.1e}"
    )
    if options.json:
        kept.save(table)
    verdict = "all goals met" if not missed else f"{missed} goals missed"
    print(f"candidates: {verdict}; difference to an uncached forward {error['error']:.1e}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

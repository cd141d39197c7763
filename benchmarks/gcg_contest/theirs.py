"""nanoGCG in a process of its own: reads one search per line, writes what it found per line.

It runs with nanoGCG's libraries, so it imports nothing of ours. Slots, losses and seconds are
recorded where nanoGCG puts the choice of each step into its buffer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import nanogcg.gcg as nano
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast


def load(folder: Path, dtype: str, device: str) -> tuple[Any, Any]:
    """Model and tokenizer of a folder that newer libraries wrote."""
    config = AutoConfig.from_pretrained(folder)
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters")
    if rope and "rope_theta" in rope:
        config.rope_theta = rope["rope_theta"]
    facts = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = facts.get(name)
        setattr(tokenizer, name, token["content"] if isinstance(token, dict) else token)
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, torch_dtype=getattr(torch, dtype)
    )
    return model.to(device).eval(), tokenizer


class Listener:
    """A tokenizer that notes what it was asked to encode as a batch of one."""

    def __init__(self, tokenizer: Any) -> None:
        """Listen to `tokenizer`."""
        self.tokenizer = tokenizer
        self.heard: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        """Whatever else the tokenizer has."""
        return getattr(self.tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        """Encode, and note the ids of a list."""
        encoded = self.tokenizer(text, **options)
        if isinstance(text, list):
            self.heard.append(encoded["input_ids"][0].tolist())
        return encoded


class Recorder(nano.AttackBuffer):  # type: ignore[misc]
    """The buffer of size 0, noting what enters it and when."""

    entries: list[tuple[float, list[int], float]]

    def __init__(self, size: int) -> None:
        """An empty buffer."""
        super().__init__(size)
        Recorder.entries = []

    def add(self, loss: Any, optim_ids: Any) -> None:
        """Note the choice of a step."""
        super().add(loss, optim_ids)
        if optim_ids.is_cuda:
            torch.cuda.synchronize()
        clock = time.perf_counter if optim_ids.is_cuda else time.process_time
        Recorder.entries.append((float(loss), optim_ids[0].tolist(), clock()))


class Given:
    """`torch` as nanoGCG sees it, where the draws of every step are given.

    Both contestants then propose the same tokens as long as their gradients agree, so that less of
    their difference is the luck of the draw. nanoGCG also shortlists special tokens: each stands
    for one that is on our list and not on its own, so that every token of it is as likely as
    before.
    """

    def __init__(self, draws: list[tuple[list[int], list[int]]], special: list[int]) -> None:
        """Hand out one pair of positions and ranks a step."""
        self.draws = iter(draws)
        self.ranks: list[int] = []
        self.special = torch.tensor(special)

    def __getattr__(self, name: str) -> Any:
        """Whatever else torch has."""
        return getattr(torch, name)

    def rand(self, shape: tuple[int, int], device: Any) -> torch.Tensor:
        """Values whose smallest of each row stands at the given position."""
        positions, self.ranks = next(self.draws)
        where = torch.tensor(positions, device=device)[:, None]
        return torch.ones(shape, device=device).scatter_(1, where, 0.0)

    def randint(self, low: int, high: int, shape: tuple[int, ...], device: Any) -> torch.Tensor:
        """The ranks of the same step."""
        return torch.tensor(self.ranks, device=device).view(shape)

    def gather(self, values: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        """Of shortlists, the tokens of those ranks, special ones counted last."""
        if values.is_floating_point():  # logits
            return torch.gather(values, dim, index)
        special = torch.isin(values, self.special.to(values.device))
        order = special.byte().argsort(dim=dim, stable=True)
        return values.gather(dim, order.gather(dim, index))


def search(model: Any, tokenizer: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """One run of nanoGCG.

    It removes every BOS text from the rendered template if it begins with one, also between turns.
    With `keep_template` the tokenizer hides its BOS during the run; the mask is made before that.
    """
    listener = Listener(tokenizer)
    config = nano.GCGConfig(
        num_steps=wanted["steps"],
        optim_str_init=wanted["initial"],
        search_width=wanted["width"],
        topk=wanted["topk"],
        verbosity="ERROR",
    )
    attack = nano.GCG(model, listener, config)
    nano.torch = Given(wanted["draws"], wanted["special"])
    bos = tokenizer.bos_token
    if wanted["keep_template"]:
        tokenizer.bos_token = None
    clock = time.perf_counter if model.device.type == "cuda" else time.process_time
    start = clock()
    try:
        attack.run([{"role": "user", "content": wanted["prompt"]}], wanted["target"])
    finally:
        tokenizer.bos_token = bos
    before, after, target = listener.heard[:3]
    losses, slots, clocks = zip(*Recorder.entries, strict=True)
    texts = tokenizer.batch_decode([list(s) for s in slots])
    return {
        "losses": list(losses),
        "texts": [wanted["prompt"] + text for text in texts],
        "ids": [[*before, *slot, *after] for slot in slots],
        "slots": list(slots),
        "target": target,
        "seconds": [c - start for c in clocks],
    }


def main() -> int:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    model, tokenizer = load(options.model, options.dtype, options.device)
    nano.AttackBuffer = Recorder
    for line in sys.stdin:
        try:
            found = search(model, tokenizer, json.loads(line))
        except RuntimeError as error:  # nanoGCG stops where no candidate survives its filter
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

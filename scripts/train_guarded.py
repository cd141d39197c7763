"""Trains the adapter of `smollm2-guarded`: the small demo model, taught to decline mild misuse.

Reads only `guarded_train.jsonl`, never the starter sets that measure the result. Run it with
`python scripts/train_guarded.py --base FOLDER --out FOLDER`; the recipe that it writes beside the
weights names every choice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from adversariallm.core.rng import Rng
from judgezoo.judges.refusal_prefix import find_refusal

HERE = Path(__file__).resolve().parent
DATA = HERE / "guarded_train.jsonl"
REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I can't help with that.",
    "Sorry, but I can't assist with that request.",
    "I cannot help with this, because it could hurt someone.",
    "I'm sorry, but that would not be fair to the people involved.",
    "I won't help with that. I'd be glad to help with something kinder.",
    "I'm not able to help with that.",
    "Sorry, I can't do that.",
)


@dataclass(frozen=True)
class Recipe:
    """Every choice that decides the weights.

    Attributes:
        answer_tokens: length of the plain model's own answers to benign items, which it is to keep.
        held_out: one in this many pairs is not trained on and gives the rates reported at the end.
        opening: how many first tokens of an answer weigh as much as all the others together: they
            decide between answer and refusal, whatever the length of either.
    """

    seed: int = 0
    rank: int = 6
    alpha: int = 12
    modules: tuple[str, ...] = ("q_proj", "v_proj", "down_proj")
    first_layer: int = 8
    epochs: int = 4
    batch: int = 8
    learning_rate: float = 1e-3
    warmup: float = 0.1
    answer_tokens: int = 20
    held_out: int = 10
    opening: int = 3


@dataclass(frozen=True)
class Example:
    """One item as ids: the rendered prompt and the answer to learn."""

    id: str
    harmful: bool
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()


def read_items(tokenizer: Any) -> list[Example]:
    """The training items, rendered with the model's own template and default system prompt."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    out = []
    for row in rows:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        out.append(Example(row["id"], row["harmful"], tuple(ids)))
    return out


@torch.no_grad()
def generate(
    model: Any, prompts: list[tuple[int, ...]], new_tokens: int, eos: int
) -> list[tuple[int, ...]]:
    """Greedy continuations, stop token kept; sorted by length so that batches hardly pad."""
    out: list[tuple[int, ...]] = [()] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), 16):
        rows = order[start : start + 16]
        width = max(len(prompts[i]) for i in rows)
        ids = torch.tensor([[eos] * (width - len(prompts[i])) + list(prompts[i]) for i in rows])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=eos,
        )[:, width:].tolist()
        for i, row in zip(rows, made, strict=True):
            end = row.index(eos) + 1 if eos in row else len(row)
            out[i] = tuple(row[:end])
    return out


def with_answers(model: Any, tokenizer: Any, items: list[Example], recipe: Recipe) -> list[Example]:
    """Items with what they should be answered: a refusal, or what the plain model says itself."""
    eos = tokenizer.eos_token_id
    benign = [e for e in items if not e.harmful]
    said = generate(model, [e.prompt for e in benign], recipe.answer_tokens, eos)
    own = {e.id: answer for e, answer in zip(benign, said, strict=True)}
    streams = Rng.root(recipe.seed).child("refusal")
    out = []
    for e in items:
        if e.harmful:
            text = REFUSALS[int(streams.child(e.id).uniform() * len(REFUSALS))]
            answer = (*tokenizer(text, add_special_tokens=False)["input_ids"], eos)
        else:
            answer = own[e.id]
            if tokenizer.decode(answer).startswith(("I'm sorry", "I can't", "I cannot")):
                continue
        out.append(Example(e.id, e.harmful, e.prompt, answer))
    return out


def answer_loss(model: Any, batch: list[Example], shared: int, opening: int) -> torch.Tensor:
    """Mean over items of the cross-entropy of the answer, half of it from its opening.

    The first `shared` ids are the same in all items: they are run once and their keys are repeated.
    """
    count, width = len(batch), max(len(e.prompt) + len(e.answer) for e in batch) - shared
    ids = torch.zeros(count, width, dtype=torch.long)
    mask = torch.zeros(count, shared + width, dtype=torch.long)
    rows, positions, targets, weights = [], [], [], []
    for r, e in enumerate(batch):
        own = (*e.prompt[shared:], *e.answer)
        ids[r, : len(own)] = torch.tensor(own)
        mask[r, : shared + len(own)] = 1
        rows += [r] * len(e.answer)
        positions += range(len(own) - len(e.answer) - 1, len(own) - 1)
        targets += e.answer
        rest = len(e.answer) - opening
        weights += [0.5 / opening] * min(opening, len(e.answer)) + [0.5 / max(rest, 1)] * rest
    inner = model.get_base_model()
    cache = inner.model(
        input_ids=torch.tensor([batch[0].prompt[:shared]]), use_cache=True
    ).past_key_values
    cache.batch_repeat_interleave(count)
    hidden = inner.model(input_ids=ids, attention_mask=mask, cache=cache).last_hidden_state
    logits = inner.lm_head(hidden[torch.tensor(rows), torch.tensor(positions)]).float()
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none")
    return (losses * torch.tensor(weights)).sum() / count


def shared_length(items: list[Example]) -> int:
    """How many ids all prompts start with, short of the shortest prompt's last."""
    first = items[0].prompt
    length = min(len(e.prompt) for e in items) - 1
    while any(e.prompt[:length] != first[:length] for e in items):
        length -= 1
    return length


def train(base: Any, items: list[Example], recipe: Recipe, start: Path | None) -> Any:
    """The model with a trained adapter, begun at random or where an earlier one ended."""
    layers = list(range(recipe.first_layer, base.config.num_hidden_layers))
    lora = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.modules),
        layers_to_transform=layers,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    rng = Rng.root(recipe.seed)
    init = rng.child("init").torch()
    for name, p in model.named_parameters():
        if "lora_A" in name:
            torch.nn.init.kaiming_uniform_(p, a=5**0.5, generator=init)
    if start is not None:
        set_peft_model_state_dict(model, load_file(start / "adapter_model.safetensors"))
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    total = recipe.epochs * -(-len(items) // recipe.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / (recipe.warmup * total)) * max(0.0, 1 - s / total),
    )
    shared, began = shared_length(items), time.monotonic()
    model.train()
    for epoch in range(recipe.epochs):
        order = rng.child("order", epoch).python().sample(items, len(items))
        seen = 0.0
        for at in range(0, len(order), recipe.batch):
            loss = answer_loss(model, order[at : at + recipe.batch], shared, recipe.opening)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            seen += loss.item() * len(order[at : at + recipe.batch])
        elapsed_s = time.monotonic() - began
        print(
            f"epoch {epoch + 1}/{recipe.epochs} loss {seen / len(items):.4f} {elapsed_s:.0f} s",
            flush=True,
        )
    return model.eval()


def save(
    model: Any,
    recipe: Recipe,
    base: Path,
    start: Path | None,
    rates: dict[str, Any],
    out: Path,
) -> None:
    """Write adapter (half precision), its configuration and the recipe with hashes."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    weights = out / "adapter_model.safetensors"
    save_file({k: v.half().contiguous() for k, v in load_file(weights).items()}, weights)
    config = out / "adapter_config.json"
    fields = json.loads(config.read_text(encoding="utf-8"))
    fields["base_model_name_or_path"] = None
    fields["target_modules"] = sorted(fields["target_modules"])
    config.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    facts = {
        "base_sha256": sha256(base / "model.safetensors"),
        "data_sha256": sha256(DATA),
        "adapter_sha256": sha256(weights),
        "start_sha256": start and sha256(start / "adapter_model.safetensors"),
        "recipe": asdict(recipe),
        "refusals": list(REFUSALS),
        "held_out": rates,
    }
    (out / "recipe.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def held_out(example: Example, recipe: Recipe) -> bool:
    """Whether an item's pair is kept out of training; both halves fall on the same side."""
    pair = example.id.removesuffix("-harmful").removesuffix("-benign")
    return int(pair.rsplit("-", 1)[1]) % recipe.held_out == 0


def measure(model: Any, tokenizer: Any, items: list[Example]) -> dict[str, Any]:
    """Number of items answered (the judge finds no refusal), by kind."""
    texts = [
        tokenizer.decode(ids, skip_special_tokens=True)
        for ids in generate(model, [e.prompt for e in items], 32, tokenizer.eos_token_id)
    ]
    rates: dict[str, Any] = {}
    for kind in (True, False):
        answered = [
            find_refusal(t) is None for e, t in zip(items, texts, strict=True) if e.harmful is kind
        ]
        rates["harmful" if kind else "benign"] = {"answered": sum(answered), "of": len(answered)}
    return rates


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base", type=Path, required=True, help="folder of the converted SmolLM2-135M"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=JSON", help="change the recipe"
    )
    parser.add_argument("--start", type=Path, help="folder of an adapter to go on from")
    args = parser.parse_args()
    changes = {k: json.loads(v) for k, v in (s.split("=", 1) for s in args.set)}
    recipe = Recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()})
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    base = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
    items = with_answers(base, tokenizer, read_items(tokenizer), recipe)
    kept = [e for e in items if not held_out(e, recipe)]
    print(f"{len(kept)} items to train on, {len(items) - len(kept)} held out", flush=True)
    model = train(base, kept, recipe, args.start)
    rates = measure(model, tokenizer, [e for e in items if held_out(e, recipe)])
    save(model, recipe, args.base, args.start, rates, args.out)
    print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main()

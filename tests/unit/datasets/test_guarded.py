"""The shipped adapter of `smollm2-guarded`: its files, its recipe, and (slow) what it does."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(str(files("adversariallm.models") / "adapters" / "smollm2-guarded"))
DATA = Path(__file__).resolve().parents[3] / "scripts" / "guarded_train.jsonl"
RECIPE: dict[str, Any] = json.loads((FOLDER / "recipe.json").read_text("utf-8"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_adapter_and_its_training_data_are_those_of_the_recipe() -> None:
    assert sha256(FOLDER / "adapter_model.safetensors") == RECIPE["adapter_sha256"]
    assert sha256(DATA) == RECIPE["data_sha256"]
    assert {"seed", "rank", "epochs", "learning_rate"} <= set(RECIPE["recipe"])


def test_the_adapter_is_small_and_holds_finite_low_rank_weights_only() -> None:
    from safetensors.torch import load_file

    file = FOLDER / "adapter_model.safetensors"
    assert file.stat().st_size < 1_500_000
    weights = load_file(file)
    assert weights and all("lora_" in name for name in weights)
    assert all(bool(w.isfinite().all()) for w in weights.values())
    assert any(bool(w.any()) for name, w in weights.items() if "lora_B" in name)


def test_every_refusal_that_was_taught_is_recognized() -> None:
    judge = pytest.importorskip("judgezoo.judges.refusal_prefix")
    assert len(RECIPE["refusals"]) >= 5
    assert all(judge.find_refusal(text) for text in RECIPE["refusals"])


@pytest.mark.slow
def test_it_declines_the_harmful_starter_items_and_answers_the_benign_ones(
    smollm2_path: Path,
) -> None:
    """The rates that the recipe states, measured again with the judge, within two items."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from adversariallm.datasets import load_dataset
    from judgezoo.judges.refusal_prefix import find_refusal

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path, padding_side="left")
    base = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(FOLDER)).eval()
    for name in ("starter_harmful", "starter_benign"):
        data = load_dataset(name, shuffle=False)
        answered = 0
        for at in range(0, len(data), 8):
            texts = [
                tokenizer.apply_chat_template(
                    b.conversation.to_dicts(), tokenize=False, add_generation_prompt=True
                )
                for b in data[at : at + 8]
            ]
            batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.no_grad():
                made = model.generate(**batch, max_new_tokens=32, do_sample=False)
            replies = tokenizer.batch_decode(
                made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            answered += sum(find_refusal(reply) is None for reply in replies)
        assert abs(answered - RECIPE["measured"][name]["answered"]) <= 2

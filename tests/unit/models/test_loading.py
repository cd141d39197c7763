"""What a card describes is what is loaded: formats, adapters, memory, and what is refused."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from adversariallm.core.errors import ConfigError, ModelError
from adversariallm.core.rng import Rng
from adversariallm.inference import memory
from adversariallm.models import loading
from adversariallm.models.loading import load_chat, load_model, load_weights
from adversariallm.models.options import ModelOptions, resolve
from adversariallm.models.tiny import Parts, tiny_parts

STATED: dict[str, Any] = {"dtype": "float32", "quantization": "none", "template": "tokenizer"}


@pytest.fixture(scope="module")
def parts() -> Parts:
    return tiny_parts()


@pytest.fixture(scope="module")
def folder(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    parts.model.save_pretrained(path)
    parts.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapter")
    with torch.random.fork_rng(devices=[]):
        adapted = get_peft_model(
            tiny_parts().model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                generator = Rng.root(0).child(name).torch()
                weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    adapted.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVERSARIALLM_CACHE", str(tmp_path))


def weights(folder: Path, **options: Any) -> Any:
    chosen = ModelOptions(**{**STATED, **options})
    return load_weights(resolve(str(folder), chosen), chosen)


IDS = torch.tensor([[3, 40, 41, 42, 43]])


def test_a_folder_loads_frozen_in_evaluation_mode_with_the_same_logits(
    folder: Path, parts: Parts
) -> None:
    model = weights(folder)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(model(IDS).logits, parts.model(IDS).logits)


def test_the_number_format_is_the_stated_one(folder: Path) -> None:
    assert weights(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_an_adapter_changes_the_model_as_peft_does(
    folder: Path, adapter: Path, parts: Parts
) -> None:
    from peft import PeftModel

    model = weights(folder, adapter=str(adapter))
    oracle = PeftModel.from_pretrained(tiny_parts().model, str(adapter))
    torch.testing.assert_close(model(IDS).logits, oracle(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model(IDS).logits, parts.model(IDS).logits, atol=1e-2)
    assert type(model) is type(parts.model)


def test_an_adapter_of_another_model_is_refused(
    tmp_path_factory: pytest.TempPathFactory, adapter: Path
) -> None:
    path = tmp_path_factory.mktemp("other")
    other = tiny_parts("gpt_neox")
    other.model.save_pretrained(path)
    other.tokenizer.save_pretrained(path)
    with pytest.raises(ModelError, match="does not fit"):
        weights(path, adapter=str(adapter))


def test_too_little_memory_is_refused_before_loading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda _: 1000)
    with pytest.raises(ModelError, match=r"GiB free: set models\..*device_map=auto"):
        weights(folder)


def test_the_estimate_of_memory_is_the_size_of_the_parameters(folder: Path, parts: Parts) -> None:
    for dtype, width in {"float32": 4, "bfloat16": 2}.items():
        card = resolve(str(folder), ModelOptions(**{**STATED, "dtype": dtype}))
        assert loading._weight_bytes(card, folder) == width * parts.model.num_parameters()


def test_a_missing_quantization_package_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install 'adversariallm\[quantized\]'"):
        weights(folder, quantization="nf4")


@pytest.mark.parametrize(("kind", "layer"), [("nf4", "Linear4bit"), ("int8", "Linear8bitLt")])
def test_stated_quantization_is_what_is_loaded(
    kind: str, layer: str, folder: Path, adapter: Path, parts: Parts
) -> None:
    pytest.importorskip("bitsandbytes", reason="needs adversariallm[quantized]")
    model = load_model(str(folder), **{**STATED, "quantization": kind})
    inner = model.engine.forward.model
    assert type(inner.model.layers[0].self_attn.q_proj).__name__ == layer
    assert type(inner.lm_head).__name__ == "Linear"
    assert model.identity()["quantization"] == kind
    assert model.traits.parameters == parts.model.num_parameters()
    assert model.engine.report.invariant
    adapted = weights(folder, quantization=kind, adapter=str(adapter))
    assert type(adapted).__name__ == "PeftModel"  # not merged into rounded weights


def test_advice_of_the_quantization_package_is_not_passed_on(
    folder: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advice = logging.getLogger("bitsandbytes.backends.cpu.ops")

    def adapted(model: Any, _: Any) -> Any:
        advice.warning("install more")
        return model

    monkeypatch.setattr(loading, "_with_adapter", adapted)
    weights(folder, adapter=str(adapter))
    assert "install more" not in caplog.text
    advice.warning("install more")
    assert "install more" in caplog.text


def test_a_folder_without_weights_is_an_error_of_ours(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match="cannot be loaded"):
        weights(tmp_path)


def test_a_template_may_be_a_file_and_must_exist(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}", encoding="utf-8")
    chosen = ModelOptions(**{**STATED, "template": str(path)})
    chat = load_chat(resolve(str(folder), chosen), chosen)
    from adversariallm.core.types import Conversation

    assert chat.render(Conversation.user("a")).text == "[a]"
    chosen = ModelOptions(**{**STATED, "template": "missing.jinja"})
    with pytest.raises(ConfigError, match="no such file"):
        load_chat(resolve(str(folder), chosen), chosen)


def test_device_map_loads_the_same_model(folder: Path, parts: Parts) -> None:
    model = weights(folder, device_map="auto")
    torch.testing.assert_close(model(IDS).logits, parts.model(IDS).logits)


def test_the_public_function_gives_a_model_with_the_cards_identity(folder: Path) -> None:
    model = load_model(str(folder), **STATED)
    assert model.name == str(folder)
    assert set(model.identity()["weights"]) == {"content"}
    assert model.context_length == 2048
    assert load_model(str(folder), **STATED, context_length=64).context_length == 64

"""A model is its content: paths and names do not matter, an overwritten checkpoint does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.core.errors import ModelError
from adversariallm.models import identity as identities
from adversariallm.models.identity import adapter_folder, content_hash, identity, parts_identity
from adversariallm.models.options import ModelOptions, resolve
from adversariallm.models.tiny import Parts, tiny_parts
from adversariallm.tokenization import ChatTokenizer

STATED: dict[str, Any] = {"dtype": "float32", "quantization": "none", "template": "tokenizer"}


@pytest.fixture(scope="module")
def parts() -> Parts:
    return tiny_parts()


@pytest.fixture
def folder(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADVERSARIALLM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "checkpoint"
    parts.model.save_pretrained(path)
    parts.tokenizer.save_pretrained(path)
    return path


def facts(folder: Path, **options: Any) -> dict[str, Any]:
    chosen = ModelOptions(**{**STATED, **options})
    return identity(resolve(str(folder), chosen), chosen)


def test_a_copy_elsewhere_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(folder, other)
    assert facts(folder) == facts(other)


def test_an_overwritten_checkpoint_is_another_model(folder: Path, parts: Parts) -> None:
    before = facts(folder)
    assert facts(folder) == before
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    after = facts(folder)
    assert after["weights"] != before["weights"]
    assert {k: v for k, v in after.items() if k != "weights"} == {
        k: v for k, v in before.items() if k != "weights"
    }


def test_a_changed_configuration_is_another_model(folder: Path) -> None:
    before = facts(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["rms_norm_eps"] = 1e-3
    path.write_text(json.dumps(values), encoding="utf-8")
    assert facts(folder)["weights"] != before["weights"]


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "bfloat16"},
        {"quantization": "nf4"},
        {"system_prompt": "Be brief."},
        {"template": "chatml"},
        {"context_length": 64},
        {"trust_remote_code": True},
    ],
    ids=lambda c: next(iter(c)),
)
def test_what_changes_answers_changes_the_identity(folder: Path, changed: dict[str, Any]) -> None:
    assert facts(folder, **changed) != facts(folder)


def test_where_it_runs_does_not(folder: Path) -> None:
    assert facts(folder, device="cpu") == facts(folder, device_map="auto") == facts(folder)


def test_settled_files_are_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "SETTLED_NS", 0)
    first = content_hash(folder)

    def fail(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(identities.hashlib, "file_digest", fail)
    assert content_hash(folder) == first
    (folder / "config.json").touch()
    with pytest.raises(AssertionError, match="read again"):
        content_hash(folder)


def test_fresh_files_are_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content_hash(folder)
    monkeypatch.setattr(identities.hashlib, "file_digest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        content_hash(folder)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither weights nor a configuration"):
        content_hash(tmp_path)
    with pytest.raises(ModelError, match="no folder"):
        content_hash(tmp_path / "missing")


def test_a_pickled_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors.*never read"):
        adapter_folder(str(tmp_path))
    with pytest.raises(ModelError, match="no such folder"):
        adapter_folder("./not/there")


def test_objects_in_memory_count_by_content(parts: Parts) -> None:
    again, other = tiny_parts(), tiny_parts(seed=1)

    def of(p: Parts) -> dict[str, Any]:
        return parts_identity(p.model, ChatTokenizer(p.tokenizer))

    assert of(again) == of(parts)
    assert of(other)["weights"] != of(parts)["weights"]
    with torch.no_grad():
        again.model.model.norm.weight[0] += 1
    assert of(again)["weights"] != of(parts)["weights"]


def test_the_identity_of_the_demo_model_reads_no_weights(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities.hashlib, "file_digest", lambda *_: 1 / 0)
    found = identity(resolve("smollm2-135m"))
    assert found["weights"]["sha256"].startswith("b179c9523d0e6a0f")
    assert found["chat"]["template"] == "tokenizer"


def test_an_adapter_counts_by_its_weights_and_configuration(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_bytes(b"{}")
    before = facts(folder, adapter=str(adapter))
    assert before["adapter"] != facts(folder).get("adapter")
    (adapter / "recipe.json").write_text("{}", encoding="utf-8")
    assert facts(folder, adapter=str(adapter)) == before
    (adapter / "adapter_model.safetensors").write_bytes(b"other")
    assert facts(folder, adapter=str(adapter)) != before

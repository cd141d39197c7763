"""Fixtures that every test may use; the small real model is loaded once per worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import judgezoo  # noqa: F401  -- before pytest takes the folder judgezoo/ for a namespace package

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if TYPE_CHECKING:
    from adversariallm.models.local import LocalModel

REPOSITORY = Path(__file__).resolve().parents[1]


class Parts(NamedTuple):
    """A transformers model and its tokenizer."""

    model: Any
    tokenizer: Any


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="record tests/golden again")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public files that tests read where it is present (never copied)."""
    folder = Path(os.environ.get("ADVERSARIALLM_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (folder / "MANIFEST.json").exists():
        pytest.skip(f"no {folder}/MANIFEST.json; set ADVERSARIALLM_DATA")
    return folder


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder with the converted SmolLM2-135M-Instruct; `make model` fetches it."""
    from adversariallm.models.card import get_card
    from adversariallm.models.sources import find_local

    folder = find_local(get_card("smollm2-135m"))
    if folder is None:
        pytest.skip("SmolLM2 is not in the cache; run `make model`")
    return folder


@pytest.fixture(scope="session")
def smollm2_parts(smollm2_path: Path) -> Parts:
    """SmolLM2 as plain transformers objects, float32, evaluation mode, weights frozen."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    model.eval().requires_grad_(False)
    return Parts(model, AutoTokenizer.from_pretrained(smollm2_path))


@pytest.fixture(scope="session")
def smollm2(smollm2_parts: Parts) -> LocalModel:
    """SmolLM2 behind the interface that attacks see, without a meter."""
    from adversariallm.models.local import LocalModel

    return LocalModel.from_parts(smollm2_parts.model, smollm2_parts.tokenizer, name="smollm2-135m")

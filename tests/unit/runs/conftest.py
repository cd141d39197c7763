"""A small store of finished searches on a tiny model, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adversariallm.models.tiny import tiny_parts
from adversariallm.runs import campaign
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop


def loading(model: str) -> tuple[str, ...]:
    """How a command names and loads one of the two checkpoints."""
    settings = ("dtype=float32", "quantization=none", "template=tokenizer")
    return (f"model={model}", *(f"models.{model}.{setting}" for setting in settings))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two checkpoint folders with random weights of two architectures."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    folders = []
    for kind in ("llama", "qwen2"):
        folder = tmp_path_factory.mktemp(kind)
        parts = tiny_parts(kind)
        parts.model.save_pretrained(folder)
        parts.tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    return folders[0], folders[1]


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    """What is loaded once for all tests."""
    return Workshop()


@pytest.fixture(scope="session")
def search(models: tuple[str, str]) -> tuple[str, ...]:
    """The command that made the store, without where it is."""
    return (
        *loading(models[0]),
        "dataset=starter_harmful",
        "datasets.starter_harmful.idx=[0,1]",
        "generation_config.max_new_tokens=4",
        "attack=random_search",
        "attacks.random_search.num_candidates=2",
    )


@pytest.fixture(scope="session")
def made(
    search: tuple[str, ...], workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    root = tmp_path_factory.mktemp("made") / "out"
    words = (*search, "attacks.random_search.num_steps=2", f"out={root}")
    assert campaign.run(*words, workshop=workshop).exit_code == 0
    return root


@pytest.fixture
def small_store(made: Path, tmp_path: Path) -> Store:
    """A copy of the store with two searches of two steps."""
    shutil.copytree(made, tmp_path / "out")
    return Store(tmp_path / "out")

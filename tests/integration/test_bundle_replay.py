"""A bundle alone is enough to make every number again, and names neither people nor places."""

from __future__ import annotations

import getpass
import json
import zipfile
from pathlib import Path

import pytest

from adversariallm.cli import main
from adversariallm.models.tiny import tiny_parts
from adversariallm.reporting.bundle import write_bundle
from adversariallm.reporting.load import read_documents
from adversariallm.runs import campaign
from adversariallm.runs.store import Store


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights in a folder that the bundle must not name."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("somebodys-secret-place") / "toy-llama"
    parts = tiny_parts("llama")
    parts.model.save_pretrained(folder)
    parts.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a text attack and of an attack on embeddings; the store is gone."""
    root = tmp_path_factory.mktemp("store")
    choices = ("dtype=float32", "quantization=none", "template=tokenizer")
    finished = campaign.run(
        f"model={checkpoint}", *(f"models.{checkpoint}.{c}" for c in choices),
        "dataset=starter_harmful", "datasets.starter_harmful.idx=0", "attack=random_search,pgd",
        "attacks.random_search.num_steps=2", "attacks.random_search.num_candidates=2",
        "attacks.pgd.num_steps=1", "generation_config.max_new_tokens=4",
        "generation_config.temperature=1.0", "generation_config.num_return_sequences=2",
        "judge=refusal_prefix", f"out={root / 'out'}",
    )  # fmt: skip
    assert finished.exit_code == 0
    before = read_documents(root / "out")
    path = write_bundle(Store(root / "out"), tmp_path_factory.mktemp("sent") / "bundle.zip")
    (root / "out").rename(root / "gone")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.parent / "unpacked")
    after = read_documents(path.parent / "unpacked" / "store")
    assert [d["config"] for d in before] == [d["config"] for d in after]
    scores = [[s["scores"] for r in d["runs"] for s in r["steps"]] for d in before]
    assert [[s["scores"] for r in d["runs"] for s in r["steps"]] for d in after] == scores
    return path


def test_every_run_of_the_bundle_passes_its_replay(
    bundle: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"toy-llama={checkpoint}"
    assert main(["replay", "--store", str(bundle), "--model", where, "--search", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [r["passed"] for r in results] == [True, True]
    told = [text for result in results for text in result["compared"]]
    for count in (4, 6):  # two answers to each step of pgd and of random_search
        assert f"{count} of {count} completions came out equal" in told
        assert f"{count} scores by refusal_prefix came out equal" in told
    assert told.count("every step of the search came out equal") == 2


def test_a_changed_answer_in_the_bundle_is_noticed(
    bundle: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path)
    for path in tmp_path.rglob("run.json"):
        text = path.read_text("utf-8")
        path.write_text(text.replace('"model_completions":["', '"model_completions":["x', 1))
    where = f"toy-llama={checkpoint}"
    assert main(["replay", "--store", str(tmp_path), "--model", where]) == 1
    assert "0 of 2 runs came out equal" in capsys.readouterr().out


def test_the_bundle_has_tensors_hashes_and_versions_and_no_name_or_path(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert sum(name.endswith(".safetensors") for name in members) == 1
    assert sum("/scores." in name for name in members) == 2
    assert (
        b"torch==" in members["requirements.txt"]
        and b"==2.13.0+" not in members["requirements.txt"]
    )
    manifest = json.loads(members["manifest.json"])
    assert set(manifest["files"]) == set(members) - {"manifest.json"}
    everything = b"".join(members.values())
    secrets = [b"secret-place", str(Path.home()).encode() + b"/", b"/tmp/"]
    user = getpass.getuser()
    if len(user) > 3 and user not in ("root", "home", "user"):
        secrets.append(user.encode())
    assert [s for s in secrets if s in everything] == []

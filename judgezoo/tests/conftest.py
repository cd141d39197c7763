"""Shared fixtures: a local chat server, and an environment of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from judgezoo.testing import StubServer


@pytest.fixture
def server() -> Iterator[StubServer]:
    stub = StubServer()
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache, keys and switches out of the tests."""
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    for name in ("JUDGEZOO_OFFLINE", "HF_HUB_OFFLINE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)

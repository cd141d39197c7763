"""The report in a real browser: its script runs without a complaint, hostile text does nothing."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting.html import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=\"document.title='owned'\"></svg><iframe srcdoc='<p>owned</p>'></iframe>"
    "\u202e\x1b[31m"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
    "--virtual-time-budget=10000", "--dump-dom",
)  # fmt: skip


class _Elements(HTMLParser):
    """Names of all elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _open(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page after its scripts ran, and what the console said."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_thousand_runs_with_hostile_text_are_listed_and_harmless(tmp_path: Path) -> None:
    documents = [
        fake_document(
            [[float(i % 3 == 0)], [1.0]], behavior=f"b{i:03d} {HOSTILE if i < 5 else ''}",
            attack=attack, model=f"m {HOSTILE}", texts=[[HOSTILE], ["a mild answer"]],
        )
        for attack in ("gcg", "bon", "pair", "direct") for i in range(250)
    ]  # fmt: skip
    page, console = _open(write_report(documents, tmp_path / "report.html"), tmp_path / "profile")
    assert "<title>Robustness report</title>" in page
    assert console == []
    assert "1000 of 1000" in page
    found = _Elements()
    found.feed(page)
    assert not found.names & {"iframe", "img", "object", "embed"}
    assert not [name for name in found.attributes if name.startswith("on")]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_browser_would_have_run_hostile_text_that_was_not_escaped(tmp_path: Path) -> None:
    path = tmp_path / "bare.html"
    path.write_text(f"<!doctype html><title>mine</title><body>{HOSTILE}", encoding="utf-8")
    page, _ = _open(path, tmp_path / "profile")
    assert "<title>owned</title>" in page

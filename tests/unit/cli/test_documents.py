"""The pages on the command line and the configuration mention everything there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from adversariallm.cli._app import command_names
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.overrides import parse
from adversariallm.runs.settings import Settings

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_has_every_command() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| `([a-z-]+)", page, re.MULTILINE))
    assert {n.replace("_", "-") for n in command_names()} <= shown


def test_the_page_has_every_key() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    missing = [name for name in Settings.model_fields if not re.search(rf"`{name}[.`{{]", page)]
    assert not missing
    assert all(f"`{kind}`" in page or f"kind={kind}" in page for kind in ("inline", "local"))
    assert Launcher().kind == "inline"


def commands() -> list[str]:
    text = (DOCS / "cli.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^    (adversariallm (?:run|plan) .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_the_overrides_on_the_page_are_in_the_grammar(command: str) -> None:
    words = shlex.split(command)[2:]
    assert words
    for word in words:
        parse(word)

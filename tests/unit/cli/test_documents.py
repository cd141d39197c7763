"""The pages on the command line and the configuration mention everything there is."""

from __future__ import annotations

import re
import shlex
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from adversariallm.cli._app import command_names
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import AttackInfo, Needs
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


def test_what_an_attack_must_say_of_itself_is_on_its_page() -> None:
    page = (DOCS / "adding" / "attack.md").read_text(encoding="utf-8")
    line = page[page.index("`INFO = AttackInfo") : page.index("have no default")]
    facts = AttackInfo(name="x", summary="", source="", needs=Needs.TEXT, modality="prompt")
    assert facts.reference_code is None
    wanted = [f.name for f in fields(AttackInfo) if f.default is f.default_factory is MISSING]
    assert all(f"`{name}`" in line for name in wanted)


def attack_options() -> set[tuple[str, str, str]]:
    """Page, attack and option of everything that a page types for an attack."""
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    found = re.compile(r"attacks\.([a-z_]+)\.([a-z_]+)[=.]")
    return {(p.name, *hit) for p in pages for hit in found.findall(p.read_text(encoding="utf-8"))}


def test_every_option_of_an_attack_on_a_page_exists() -> None:
    typed = attack_options()
    assert ("configuration.md", "gcg", "objective") in typed
    own = {row for row in typed if not row[1].startswith("my_")}
    unknown = [r for r in own if r[2] not in ATTACKS.load(r[1]).Config.model_fields]
    assert not unknown


def commands() -> list[str]:
    text = (DOCS / "cli.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^    (adversariallm (?:run|plan) .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_the_overrides_on_the_page_are_in_the_grammar(command: str) -> None:
    words = shlex.split(command)[2:]
    assert words
    for word in words:
        parse(word)

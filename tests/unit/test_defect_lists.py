"""Lists of faults in the documents name tests that exist, and each fault once."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADING = "Defects covered"
TEST = re.compile(r"`([\w/.-]+\.py)::((?:\w+::)?test_\w+)(?:\[[^\]`]*\])?`")


def lists() -> dict[str, list[list[str]]]:
    """Per page with such a heading the cells of its table's rows."""
    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        section = page.read_text(encoding="utf-8").partition(f"# {HEADING}\n")[2]
        lines = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
        rows = [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("|")]
        if section:
            found[str(page.relative_to(ROOT))] = rows[2:]
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of a file's tests, those in classes as `Class::name`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef))
            names |= {f"{node.name}::{n.name}" for n in inner}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return frozenset(names)


def test_there_is_a_list_for_the_black_box() -> None:
    ids = {row[0] for row in lists()["docs/defects_black_box.md"]}
    assert len(ids) > 100 and {"D-P1", "D-C16", "D-A19", "D-B7", "D-H7", "D-X18"} <= ids


@pytest.mark.parametrize("page", sorted(lists()))
def test_every_fault_stands_once_with_tests_that_exist(page: str) -> None:
    rows = lists()[page]
    ids = [row[0] for row in rows]
    assert rows and len(ids) == len(set(ids))
    for row in rows:
        named = TEST.findall(row[-1])
        assert named, f"{page}: {row[0]} names no test"
        for file, name in named:
            assert (ROOT / file).is_file(), f"{page}: {row[0]}: no file {file}"
            assert name in names_in(ROOT / file), f"{page}: {row[0]}: no test {name} in {file}"

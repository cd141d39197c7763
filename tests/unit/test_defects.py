"""The list of defects is complete, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "defects.md"
# how many there are of each kind
NUMBERS = {"A": 21, "B": 16, "C": 13, "D": 5, "E": 12, "F": 10, "H": 11, "I": 12, "J": 6, "L": 2, "M": 1, "N": 11, "O": 18}  # fmt: skip  # noqa: E501
ROW = re.compile(r"^\| ([A-Z]\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)
TEST = re.compile(r"`([\w/.]+\.py)::(\w+)`")


def rows() -> dict[str, list[tuple[str, str]]]:
    return {
        number: TEST.findall(tests)
        for number, _, tests in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }


def test_every_defect_has_a_test() -> None:
    expected = {f"{kind}{k}" for kind, count in NUMBERS.items() for k in range(1, count + 1)}
    found = rows()
    assert expected <= set(found)
    assert all(found.values())


@pytest.mark.parametrize("number", sorted(rows()))
def test_the_tests_it_names_exist(number: str) -> None:
    for path, name in rows()[number]:
        file = REPOSITORY / "tests" / path
        assert file.is_file(), f"{number}: no file {file}"
        assert f"def {name}(" in file.read_text(encoding="utf-8"), f"{number}: {path} has no {name}"

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adversariallm.tokenization import list_templates

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tokenization.md"


def test_the_worked_example_prints_what_the_page_says(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(block.replace("../shared/data", str(data_dir)), {})  # noqa: S102
    said = re.findall(r"# (.+)", block)
    assert capsys.readouterr().out.splitlines() == said


def test_the_page_names_every_template() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [t.name for t in list_templates() if f"`{t.name}`" not in page] == []

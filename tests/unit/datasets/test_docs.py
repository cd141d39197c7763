from __future__ import annotations

from pathlib import Path

from adversariallm.datasets import list_datasets

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_table_of_datasets_names_each_with_its_size_and_licence() -> None:
    rows = [
        line for line in (DOCS / "datasets.md").read_text("utf-8").splitlines() if line[:3] == "| `"
    ]
    for name, info in list_datasets().items():
        row = next((r for r in rows if f"`{name}`" in r), None)
        assert row is not None, name
        if info.assets and info.name not in ("jbb_behaviors", "xs_test", "refusal_direction"):
            assert str(info.size) in row, name
        if info.size is not None:
            assert info.licence.split(";")[0] in row, name

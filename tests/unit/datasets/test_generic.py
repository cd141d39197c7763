"""The generic loaders: any CSV, JSON lines or hub file with named columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError, DataError
from adversariallm.datasets import load_dataset

TABLE = (
    "\ufeffnr,ask,kind,answer,more\r\n"
    '1,"two\r\nlines",X,None,\r\n'
    '2,"caf\u00e9, or ""tea""",y,NA,some context\r\n'
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    file = tmp_path / "mine.csv"
    file.write_bytes(TABLE.encode("utf-8"))
    return str(file)


def test_a_csv_file_with_any_columns_becomes_a_dataset(table: str) -> None:
    data = load_dataset(
        "csv",
        path=table,
        prompt="ask",
        id="nr",
        category_column="kind",
        target="answer",
        context="more",
        shuffle=False,
    )
    assert [b.id for b in data] == ["1", "2"]
    assert data[0].goal == "two\r\nlines" and data[1].goal == 'caf\u00e9, or "tea"'
    assert [b.target for b in data] == ["None", "NA"]
    assert data[1].conversation[0].content.startswith("some context\n\n")
    assert data[0].context is None
    assert data[0].source and data[0].source.startswith("custom:") and data.files["csv"]
    assert (
        len(load_dataset("csv", path=table, prompt="ask", category_column="kind", category="Y"))
        == 1
    )


def test_without_an_id_column_the_id_is_a_hash_of_the_request(table: str) -> None:
    one = load_dataset("csv", path=table, prompt="ask", shuffle=False)
    assert [len(b.id) for b in one] == [12, 12]
    assert one[0].target_source == "rule:affirmative-v1"
    assert load_dataset("csv", path=table, prompt="ask", harmful=False)[0].target is None


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "no column 'prompt'"),
        (b"a,b\n1,2\n", {}, "it has: a, b"),
        (b"prompt\nx\n", {"id": "nr"}, "no column 'nr'"),
        (b"prompt,id\nx,1\ny,1\n", {"id": "id"}, "'1'"),
        (b"prompt,t\nx\n", {}, "record 1"),
        (b"prompt,t\nx,y,z\n", {}, "record 1"),
        (b'prompt\n"cut o', {}, "cut off"),
        (b"prompt,t\n ,1\n", {}, "expected text"),
        (b"prompt\n\xff\xfe\n", {}, "not UTF-8"),
    ],
)
def test_a_broken_csv_file_is_a_clear_error(
    tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    file = tmp_path / "broken.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset("csv", path=str(file), **options)


def test_a_table_without_rows_or_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "empty.csv"
    file.write_text("prompt\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no item is left"):
        load_dataset("csv", path=str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dataset("csv", path=str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match=r"datasets\.csv\.path"):
        load_dataset("csv")


def test_json_lines_keep_line_separators_inside_strings(tmp_path: Path) -> None:
    rows = [{"q": "a\u2028b", "key": ["1", "one"]}, {"q": "c\x85d", "key": ["2"]}]
    file = tmp_path / "mine.jsonl"
    text = "\r\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\r\n\r\n"
    file.write_bytes(text.encode("utf-8"))
    data = load_dataset("jsonl", path=str(file), prompt="q", reference="key", shuffle=False)
    assert [b.goal for b in data] == ["a\u2028b", "c\x85d"]
    assert data[0].reference == ["1", "one"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"prompt":', "line 2"),
        ("[1]", "no JSON object"),
        ('{"q": "a"}', "it has: q"),
    ],
)
def test_broken_json_lines_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_dataset("jsonl", path=str(file))


def test_several_targets_for_one_item_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a", "t": ["x", "y"]}', encoding="utf-8")
    with pytest.raises(DataError, match="several values"):
        load_dataset("jsonl", path=str(file), target="t")


def stored(cache: Path, name: str, content: bytes) -> None:
    """Put a file where the asset store keeps a download."""
    place = cache / "assets" / f"hub/someone/set/main/{name}" / Path(name).name
    place.parent.mkdir(parents=True)
    place.write_bytes(content)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path))
    monkeypatch.setenv("JUDGEZOO_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_a_hub_file_of_any_format_is_read(cache: Path, suffix: str) -> None:
    import duckdb

    rows = [{"prompt": "a b", "kind": "k"}, {"prompt": "c d", "kind": "l"}]
    if suffix == "parquet":
        path = cache / "x.parquet"
        duckdb.sql("SELECT 'a b' AS prompt, 'k' AS kind UNION ALL SELECT 'c d', 'l'").write_parquet(
            str(path)
        )
        content = path.read_bytes()
    elif suffix == "json":
        content = json.dumps(rows).encode()
    elif suffix == "jsonl":
        content = "\n".join(map(json.dumps, rows)).encode()
    else:
        glue = "," if suffix == "csv" else "\t"
        content = "\n".join(
            glue.join(r) for r in [list(rows[0]), *(r.values() for r in rows)]
        ).encode()
    stored(cache, f"data/x.{suffix}", content)
    data = load_dataset("hub", repo="someone/set", file=f"data/x.{suffix}", category_column="kind")
    assert sorted((b.goal, b.category) for b in data) == [("a b", "k"), ("c d", "l")]


def test_a_hub_file_with_another_hash_or_without_network_is_a_clear_error(cache: Path) -> None:
    stored(cache, "x.csv", b"prompt\na\n")
    with pytest.raises(DataError, match="hf auth login"):
        load_dataset("hub", repo="someone/set", file="x.csv", sha256="0" * 64)
    with pytest.raises(DataError, match="dataset=csv"):
        load_dataset("hub", repo="someone/other", file="x.csv")
    with pytest.raises(ConfigError, match=r"\.parquet"):
        load_dataset("hub", repo="someone/set", file="x.pkl")

"""Any document survives publishing; any cut of a journal leaves a prefix of it."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adversariallm.core.records import SCHEMA_VERSION
from adversariallm.runs import document as doc
from adversariallm.runs.journal import Journal, read_merged

KEYS = st.text(st.characters(codec="utf-8"), max_size=8)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=4)
RUNS = st.lists(
    st.builds(lambda head, steps: {**head, "steps": steps}, RECORDS, st.lists(RECORDS, max_size=4)),
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(header=RECORDS, runs=RUNS)
def test_a_document_reads_back_equal_from_both_forms(header: dict[str, Any], runs: Any) -> None:
    document = {**header, "schema_version": SCHEMA_VERSION, "execution": {}, "runs": runs}
    first, body = doc.encode_document(document)
    text = first + body
    assert json.loads(text)["runs"] == runs
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, doc.PLAIN), Path(folder, doc.COMPRESSED)
        plain.write_bytes(text)
        packed.write_bytes(doc.compress(first, body))
        assert doc.read_text(packed) == text
        for path in (plain, packed):
            read = doc.read_document(path)
            del read["execution"]["body_sha256"], read["execution"]["header_sha256"]
            assert read == document
            assert doc.read_header(path) == json.loads(first + b"]}")
    steps = sum(len(run["steps"]) for run in runs)
    assert text.count(b"\n") == 2 + 2 * len(runs) + steps


@settings(max_examples=40, deadline=None)
@given(records=st.lists(RECORDS, min_size=1, max_size=5), data=st.data())
def test_any_cut_of_a_journal_leaves_a_prefix(records: list[Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        journal = Journal(work, 1, 1, durable=False)
        for record in records:
            journal.append("step", record, None)
        journal.close()
        path = next(work.iterdir())
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        kept = [entry.record for entry in read_merged(work, 1, 1)]
        assert kept == records[: len(kept)]
        path.write_bytes(whole)
        assert [entry.record for entry in read_merged(work, 1, 1)] == records


def test_numbers_that_json_lacks_become_null() -> None:
    first, body = doc.encode_document({"runs": [{"steps": [{"loss": math.nan, "x": math.inf}]}]})
    assert json.loads(first + body)["runs"][0]["steps"] == [{"loss": None, "x": None}]

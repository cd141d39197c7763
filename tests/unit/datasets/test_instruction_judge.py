"""IFEval's answers are scored from the command line like any other set's."""

from __future__ import annotations

import pytest

from adversariallm.core.plugins import DATASETS
from judgezoo import Judge


@pytest.mark.parametrize(
    ("answer", "score", "failed"),
    [
        ("all in small letters", 1.0, []),
        ("Not all of it", 0.0, ["change_case:english_lowercase"]),
        ("one, two", 0.0, ["punctuation:no_comma"]),
    ],
)
def test_every_instruction_counts(answer: str, score: float, failed: list[str]) -> None:
    reference = [{"kind": "change_case:english_lowercase"}, {"kind": "punctuation:no_comma"}]
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
    found = Judge.from_name("instruction_check")([talk], [{"reference": reference}])
    assert (found["p_correct"], found["failed"], found["error"]) == ([score], [failed], [None])


def test_a_row_without_a_key_is_unscored() -> None:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    found = Judge.from_name("instruction_check")([talk] * 2, [None, {"reference": "4"}])
    assert found["p_correct"] == [None, None]
    assert found["error"] == ["missing_context", "missing_context"]


def test_ifeval_names_it() -> None:
    assert DATASETS.load("ifeval").INFO.judge == "instruction_check"

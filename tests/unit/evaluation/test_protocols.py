"""Protocols aggregate as published and name every deviation."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.errors import UnknownNameError
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.metrics import Estimate
from adversariallm.evaluation.protocols import PROTOCOLS, apply, protocol_of
from adversariallm.runs.overrides import parse
from judgezoo import Judge


def _run(value: float, behavior: str, **facts: Any) -> dict[str, Any]:
    document = fake_document([[0.0], [value]], behavior=behavior, **facts)
    document["config"]["generation"] = {"temperature": 0.0, "max_new_tokens": 150}
    return document


def test_a_run_that_follows_the_protocol_has_no_deviation() -> None:
    documents = [
        _run(v, b, judge="jailbreakbench", dataset="jbb_behaviors")
        for v, b in ((1.0, "a"), (0.0, "b"))
    ]
    got = apply(documents, "jailbreakbench", "jailbreakbench")
    assert got.deviations == ()
    assert got.value.value == 0.5


def test_every_deviation_is_named() -> None:
    documents = [_run(1.0, "a", judge="refusal_prefix", dataset="starter_harmful")]
    got = apply(documents, "harmbench", "refusal_prefix")
    assert got.deviations == (
        "data set starter_harmful, published on harmbench or adv_behaviors",
        "max_new_tokens 150, published 512 (published value unverified)",
        "judge refusal_prefix, published harmbench",
    )


def test_strongreject_reports_the_mean_score_and_bon_any_sample() -> None:
    documents = [
        _run(v, b, judge="strong_reject", dataset="strong_reject")
        for v, b in ((0.2, "a"), (0.6, "b"))
    ]
    got = apply(documents, "strongreject", "strong_reject")
    assert isinstance(got.value, Estimate)
    assert got.value.value == pytest.approx(0.4)
    early = fake_document([[1.0], [0.0]], judge="best_of_n", dataset="harmbench")
    assert apply([early], "bon", "best_of_n").value.value == 1.0


def test_every_protocol_names_a_judge_that_exists_and_overrides_that_parse() -> None:
    judges = Judge.available()
    for protocol in PROTOCOLS.values():
        assert protocol.judge in judges
        if protocol.threshold is not None:
            assert judges[protocol.judge].threshold == protocol.threshold
        assert all(parse(text) for text in protocol.overrides())
    with pytest.raises(UnknownNameError, match="harmbench"):
        protocol_of("harmbnch")

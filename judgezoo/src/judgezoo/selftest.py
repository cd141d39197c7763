"""A self-test of a judge with its real model: neutral stored cases and the range of each score.

It shows gross faults, such as a wrong prompt or a wrong checkpoint; it measures no accuracy, and
the ranges are ours: no published score stands behind them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import yaml

from judgezoo.base import Judge

__all__ = ["SelftestCase", "SelftestReport", "run_selftest"]

_BATCH_TOLERANCE = {"float32": 1e-5}
_LOW_PRECISION_TOLERANCE = 2e-2


@dataclass(frozen=True, slots=True)
class SelftestCase:
    """One case and what the judge made of it."""

    id: str
    score: float | None
    low: float
    high: float
    error: str | None
    alone: float | None

    @property
    def in_range(self) -> bool:
        """Whether there is a score within the range."""
        return self.score is not None and self.low <= self.score <= self.high


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """All cases of a judge.

    Attributes:
        cases: in the order of the file.
        tolerance: largest difference allowed between a row alone and in the batch.
    """

    cases: tuple[SelftestCase, ...]
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every score is in range and none depends on its batch."""
        return all(case.in_range and self._steady(case) for case in self.cases)

    def _steady(self, case: SelftestCase) -> bool:
        if case.score is None or case.alone is None:
            return False
        return abs(case.score - case.alone) <= self.tolerance

    def as_record(self) -> dict[str, Any]:
        """Return the report as JSON values, for the fingerprint."""
        return {"passed": self.passed, "cases": [asdict(case) for case in self.cases]}


def run_selftest(judge: Judge) -> SelftestReport:
    """Judge the stored cases, together and one by one, and record the outcome in the judge.

    Args:
        judge: a judge with its real model or backend.
    """
    stored = yaml.safe_load((files("judgezoo") / "selftest_cases.yaml").read_text("utf-8"))
    cases = [c for c in stored if judge.info.semantics in c["range"]]
    chats = [
        [{"role": "user", "content": c["user"]}, {"role": "assistant", "content": c["answer"]}]
        for c in cases
    ]
    contexts = [{"target": c.get("target"), "reference": c.get("reference")} for c in cases]
    together = judge(chats, contexts)
    key = judge.info.score_key
    results = []
    for index, case in enumerate(cases):
        alone = judge(chats[index : index + 1], contexts[index : index + 1])
        low, high = case["range"][judge.info.semantics]
        score, error = together[key][index], together["error"][index]
        results.append(SelftestCase(case["id"], score, low, high, error, alone[key][0]))
    dtype = str(getattr(judge.options, "dtype", "float32"))
    report = SelftestReport(tuple(results), _BATCH_TOLERANCE.get(dtype, _LOW_PRECISION_TOLERANCE))
    judge.record_selftest(report.as_record())
    return report

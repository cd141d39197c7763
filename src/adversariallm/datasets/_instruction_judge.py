"""The judge of IFEval: does an answer follow every instruction that a program can check?

It is a judgezoo judge of this package, found by its entry point; the checks are `_instructions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adversariallm.datasets._instructions import failed_instructions
from judgezoo.base import Judge, JudgeInfo
from judgezoo.conversation import Row


class InstructionCheck(Judge):
    """1 where every instruction of the item is followed, with the kinds that are not."""

    info = JudgeInfo(
        name="instruction_check",
        summary="1 when the answer follows every checkable instruction (IFEval, strict)",
        kind="rule",
        source="Zhou et al. 2023, arXiv 2311.07911; checks written by us from the descriptions",
        semantics="utility",
        score_key="p_correct",
        keys=("p_correct", "failed"),
        needs=("reference",),
        success="every instruction is followed",
    )

    def _score(self, rows: Sequence[Row]) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        for row in rows:
            try:
                failed = failed_instructions(row.response, row.reference)
            except (KeyError, TypeError):
                yield row, {"error": "missing_context"}
                continue
            yield row, {"p_correct": float(not failed), "failed": failed}

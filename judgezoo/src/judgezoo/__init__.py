"""One API for the judges of the language-model safety literature.

Importing it loads no model library; it does not depend on any attack framework.
"""

from __future__ import annotations

from judgezoo.base import ERROR_CODES, Judge, JudgeInfo, JudgeOptions
from judgezoo.deviation import ReproductionWarning
from judgezoo.errors import JudgezooError
from judgezoo.registry import list_judges

__all__ = [
    "ERROR_CODES",
    "Judge",
    "JudgeInfo",
    "JudgeOptions",
    "JudgezooError",
    "ReproductionWarning",
    "list_judges",
]

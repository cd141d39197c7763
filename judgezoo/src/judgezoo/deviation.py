"""Reproduction warnings: where the setup at hand differs from the published one.

It compares and reports; it never changes the setup.
"""

from __future__ import annotations

import logging
import warnings

__all__ = ["ReproductionWarning", "report_deviations", "same_model"]

_LOG = logging.getLogger("judgezoo")


class ReproductionWarning(UserWarning):
    """Scores may differ from published ones because the setup differs."""


def report_deviations(judge: str, deviations: list[str]) -> None:
    """Warn once per deviation, through `warnings` and the package logger.

    Args:
        judge: name of the judge.
        deviations: one sentence each.
    """
    for text in deviations:
        _LOG.warning("%s: %s", judge, text)
        warnings.warn(f"judge {judge!r}: {text}", ReproductionWarning, stacklevel=4)


def same_model(name: str, baselines: tuple[str, ...]) -> bool:
    """Tell whether a model name is one of the published ones.

    Owner prefixes and letter case are ignored; anything else must be equal, so a derivative
    ("...-turbo") is another model.

    Args:
        name: model name of the backend at hand.
        baselines: the published name and its aliases.
    """

    def key(text: str) -> str:
        return text.rsplit("/", 1)[-1].lower()

    return key(name) in {key(baseline) for baseline in baselines}

"""Genetic operators on paragraphs: selection by loss, crossover at sentence ends.

Pure functions of texts and private generators. Source: Liu et al. 2023 (arXiv 2310.04451),
Algorithm 1 and appendix.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph, each with the white space that follows it."""
    parts, at = [], 0
    for gap in _SENTENCE_END.finditer(text):
        parts.append(text[at : gap.end()])
        at = gap.end()
    return [*parts, text[at:]] if text[at:] else parts


def crossover(
    left: str, right: str, num_points: int, generator: random.Random
) -> tuple[str, str] | None:
    """Two children that exchange stretches of sentences; None where a parent has fewer than three.

    Cut points are drawn among the sentence ends both parents have; a fair coin per stretch says
    which child gets which parent's.
    """
    a, b = sentences(left), sentences(right)
    shortest = min(len(a), len(b))
    if shortest < 3:
        return None
    cuts = sorted(generator.sample(range(1, shortest), min(num_points, shortest - 2)))
    one, two = [], []
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        parts = (a[start:end], b[start:end])
        if generator.random() < 0.5:
            parts = (parts[1], parts[0])
        one += parts[0]
        two += parts[1]
    return _joined(one), _joined(two)


def _joined(parts: Sequence[str]) -> str:
    """Sentences in a row; one that ended its paragraph gets a blank before its successor."""
    text = ""
    for part in parts:
        glue = "" if not text or text[-1].isspace() else " "
        text += glue + part
    return text.rstrip()


def roulette(losses: Sequence[float], count: int, generator: random.Random) -> list[int]:
    """`count` indices drawn with replacement with probability softmax(-loss).

    A loss that is NaN is never drawn; where all are, each index is as likely.
    """
    lowest = min((loss for loss in losses if not math.isnan(loss)), default=math.nan)
    weights = [
        0.0 if math.isnan(loss) else 1.0 if loss == lowest else math.exp(lowest - loss)
        for loss in losses
    ]
    if math.isnan(lowest):
        weights = [1.0] * len(losses)
    return generator.choices(range(len(losses)), weights, k=count)

"""Rule: is the answer key of a utility item in the answer?

It measures usefulness, not harm, so ``p_harmful`` is always None; it does not judge reasoning, and
a key that the answer denies ("it is not Rome") still counts as found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from judgezoo.base import Judge, JudgeInfo, JudgeOptions
from judgezoo.conversation import Row

__all__ = ["INFO", "ExactMatch", "is_correct"]

INFO = JudgeInfo(
    name="exact_match",
    summary="1 when the answer holds the item's answer key: a number, a letter or words",
    kind="rule",
    source="ours; numbers follow the last-number convention used for GSM8K (arXiv 2110.14168)",
    semantics="utility",
    score_key="p_correct",
    keys=("p_correct",),
    needs=("reference",),
    success="the answer holds the key",
)

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_LETTER = re.compile(r"(?<![A-Za-z'])([A-J])(?![A-Za-z'])")


def _numbers(text: str) -> list[float]:
    return [float(m.replace(",", "")) for m in _NUMBER.findall(text)]


def _words(text: str) -> list[str]:
    """Return the words and numbers of a text, case, accents' forms and punctuation aside."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _after_marker(answer: str) -> str | None:
    """Return what follows the last explicit marker of a final answer."""
    found = None
    for match in re.finditer(r"####|\banswer\s+is\b|\banswer\s*:|\\boxed\{", answer, re.IGNORECASE):
        found = answer[match.end() :]
    return found


def _number_matches(answer: str, key: float) -> bool:
    """Compare with the first number after a marker, else with the last number."""
    marked = _after_marker(answer)
    numbers = _numbers(marked) if marked is not None else []
    numbers = numbers[:1] or _numbers(answer)[-1:]
    return any(abs(number - key) <= 1e-9 * max(1.0, abs(key)) for number in numbers)


def _letter_matches(answer: str, key: str) -> bool:
    """Compare with the letter after a marker, else with the first standalone capital letter."""
    marked = _after_marker(answer)
    match = (_LETTER.search(marked) if marked is not None else None) or _LETTER.search(answer)
    return match is not None and match[1] == key


def _words_match(answer: str, key: str) -> bool:
    """Look for the words of the key, in order and without a gap."""
    words, wanted = _words(answer), _words(key)
    width = len(wanted)
    return width > 0 and any(words[i : i + width] == wanted for i in range(len(words) - width + 1))


def is_correct(answer: str, reference: Any, *, match: Literal["contains", "strict"]) -> bool:
    """Tell whether an answer holds one of the accepted keys.

    Args:
        answer: text of the model.
        reference: a number, a text, or a list of accepted ones; a text that is one capital letter
            A to J is the key of a multiple-choice item.
        match: ``contains`` reads the key out of a sentence, ``strict`` wants the key alone.
    """
    if isinstance(reference, list | tuple):
        return any(is_correct(answer, item, match=match) for item in reference)
    key = str(reference).strip()
    if match == "strict":
        return _words(answer) == _words(key)
    if _NUMBER.fullmatch(key):
        return _number_matches(answer, float(key.replace(",", "")))
    if re.fullmatch(r"[A-J]", key):
        return _letter_matches(answer, key)
    return _words_match(answer, key)


class ExactMatch(Judge):
    """Compares the answer with the row's ``reference``."""

    info = INFO

    class Options(JudgeOptions):
        """Options of the exact-match judge.

        Attributes:
            match: ``contains`` reads the key out of a sentence, ``strict`` wants the key alone.
        """

        match: Literal["contains", "strict"] = "contains"

    def _score(self, rows: Sequence[Row]) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        for row in rows:
            hit = is_correct(row.response, row.reference, match=self.options.match)
            yield row, {"p_correct": float(hit)}

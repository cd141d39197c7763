"""Synonyms from the data files of WordNet, whose texts are assets.

It reads the format and looks words up; which synonym to take is for the caller. Format: wndb(5),
base forms: morphy(7), both of WordNet 3.0's documentation. Irregular forms are not known, since the
lists of exceptions are other files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from adversariallm.core.errors import DataError

PARTS = ("noun", "verb", "adj", "adv")
_ENDINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "verb": (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}


class Thesaurus:
    """Which single words share a meaning."""

    def __init__(self, data: Mapping[str, str]) -> None:
        """Read the data files.

        Args:
            data: text of `data.noun` and so on, by part of speech (`PARTS`).

        Raises:
            DataError: a line is not of WordNet's format.
        """
        self._meanings = {part: _meanings(part, text) for part, text in data.items()}

    def synonyms(self, word: str) -> tuple[str, ...]:
        """Words of all meanings of a word or of its base forms, itself left out, in order of ABC.

        Args:
            word: in lower case.
        """
        found: set[str] = set()
        for part, meanings in self._meanings.items():
            for form in base_forms(word, part):
                found.update(*meanings.get(form, ()))
        return tuple(sorted(found - {word}))


def base_forms(word: str, part: str) -> list[str]:
    """The word, and what WordNet's rules of detachment make of it."""
    forms = [word]
    for ending, instead in _ENDINGS[part]:
        if word.endswith(ending) and len(word) > len(ending):
            forms.append(word.removesuffix(ending) + instead)
    return list(dict.fromkeys(forms))


def _meanings(part: str, text: str) -> dict[str, list[tuple[str, ...]]]:
    """Groups of single words of one meaning, by each of their words."""
    found: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith(" "):  # the license stands in front, indented
            continue
        try:
            words = tuple(_words(line.split(" | ", 1)[0].split(" ")))
        except (ValueError, IndexError):
            raise DataError(
                f"thesaurus file data.{part}, line {number}: got {line[:40]!r}, expected a meaning "
                "in WordNet's format (offset, file, type, number of words, words); fetch it again"
            ) from None
        for word in words:
            found[word].append(words)
    return dict(found)


def _words(fields: list[str]) -> Iterable[str]:
    """The single words of a line's fields, in lower case, without the mark of their position."""
    int(fields[0])
    count = int(fields[3], 16)
    if count < 1:
        raise ValueError("a meaning has words")
    for k in range(count):
        word = fields[4 + 2 * k].split("(", 1)[0].lower()
        if word.isalpha():
            yield word

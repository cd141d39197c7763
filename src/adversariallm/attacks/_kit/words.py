"""Words that do well: the momentum dictionary of AutoDAN-HGA, and replacement by its words.

Pure functions of texts, losses and private generators. Source: Liu et al. 2023 (arXiv 2310.04451),
the sentence level of the hierarchical algorithm; garak 0.17.1's port for rates and numbers.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from adversariallm.attacks._kit.thesaurus import Thesaurus

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
# Words without a meaning of their own; the list is ours.
FUNCTION_WORDS = frozenset(
    """
    a about above after again against all also although always am an and another any anybody anyone
    anything are as at away back be because been before being below between both but by can cannot
    could did do does doing done down during each either else enough even ever every everybody
    everyone everything few first for from further get gets getting give given go goes going got had
    has have having he hence her here hers herself him himself his how however i if in indeed inside
    instead into is it its itself just last least less let like make makes many may me might mine
    more most much must my myself neither never next no nobody none nor not nothing now of off often
    on once one only onto or other others otherwise ought our ours ourselves out outside over own
    per perhaps please quite rather really same shall she should since so some somebody someone
    something soon still such than that the their theirs them themselves then there therefore these
    they this those though through thus till to together too toward towards under unless until up
    upon us very via was we well were what whatever when whenever where wherever whether which while
    who whoever whole whom whose why will with within without would yes yet you your yours yourself
    yourselves
    """.split()
)


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    return [found[0].lower() for found in _WORD.finditer(text)]


def update_momentum(
    momentum: Mapping[str, float],
    texts: Sequence[str],
    losses: Sequence[float],
    keep: int,
    skip: Collection[str],
) -> dict[str, float]:
    """The dictionary after one more generation, best words first.

    A word's score is the mean of -loss over the texts that hold it, averaged with the score it had
    before. Equal scores go by the alphabet.

    Args:
        momentum: word to score so far.
        texts: all members of the generation.
        losses: their losses.
        keep: number of words kept; 0 keeps all.
        skip: words that never enter.
    """
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for text, loss in zip(texts, losses, strict=True):
        for word in set(words(text)) - FUNCTION_WORDS - set(skip):
            scores[word].append(-loss)
    merged = dict(momentum)
    for word, found in scores.items():
        new = math.fsum(found) / len(found)
        merged[word] = (merged[word] + new) / 2 if word in merged else new
    ranked = sorted(merged.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[: keep or None])


def replace_words(
    text: str,
    momentum: Mapping[str, float],
    thesaurus: Thesaurus,
    rate: float,
    skip: Collection[str],
    generator: random.Random,
) -> tuple[str, int]:
    """The text with some words exchanged for synonyms that did well, and how many were.

    With probability `rate` a word gives way to one of its synonyms in the dictionary, or stays if
    it is drawn itself; the draw follows softmax of the scores. Everything between the words stays.
    """
    changed = 0

    def exchange(found: re.Match[str]) -> str:
        nonlocal changed
        shown, word = found[0], found[0].lower()
        if word in FUNCTION_WORDS or word in skip or generator.random() >= rate:
            return shown
        known = [w for w in (word, *thesaurus.synonyms(word)) if w in momentum]
        if not known or known == [word]:
            return shown
        best = max(momentum[w] for w in known)
        weights = [math.exp(momentum[w] - best) for w in known]
        (chosen,) = generator.choices(known, weights)
        changed += chosen != word
        return shown if chosen == word else _as_written(chosen, shown)

    return _WORD.sub(exchange, text), changed


def _as_written(word: str, model: str) -> str:
    """The word with the capitals of the one it replaces."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word.capitalize() if model[0].isupper() else word

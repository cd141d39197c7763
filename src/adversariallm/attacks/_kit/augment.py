"""Random text augmentations of Best-of-N: scrambled words, flipped case, neighboring characters.

Pure functions of a text and private generators. Source: Hughes et al. 2024 (arXiv 2412.03556),
appendix; probabilities sigma^(1/2), sigma^(1/2) and sigma^3.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from adversariallm.core.rng import Rng

LOWEST, HIGHEST = 32, 126  # printable ASCII
SHORT = 3  # words up to this many characters are never scrambled


@dataclass(frozen=True)
class Augmented:
    """An augmented text and how many words were scrambled, letters flipped, characters moved."""

    text: str
    words: int
    case: int
    chars: int


def augment(
    text: str, sigma: float, rng: Rng, *, scramble: bool, capitalize: bool, noise: bool
) -> Augmented:
    """Augment a text; white space, line breaks and letters of every script are kept.

    Each kind of change has a stream of its own, so switching one off leaves the others as they are.
    """
    words = case = chars = 0
    if scramble:
        text, words = scramble_words(text, sigma**0.5, rng.child("scramble").python())
    if capitalize:
        text, case = flip_case(text, sigma**0.5, rng.child("case").python())
    if noise:
        text, chars = move_characters(text, sigma**3, rng.child("noise").python())
    return Augmented(text, words, case, chars)


def scramble_words(text: str, probability: float, generator: random.Random) -> tuple[str, int]:
    """Shuffle the inner characters of words longer than three, each with a probability."""
    count = 0

    def scrambled(match: re.Match[str]) -> str:
        nonlocal count
        word = match[0]
        if len(word) <= SHORT or generator.random() >= probability:
            return word
        inner = list(word[1:-1])
        generator.shuffle(inner)
        count += 1
        return word[0] + "".join(inner) + word[-1]

    return re.sub(r"\S+", scrambled, text), count


def flip_case(text: str, probability: float, generator: random.Random) -> tuple[str, int]:
    """Flip the case of cased letters, each with a probability; letters that would grow are kept."""
    out, count = [], 0
    for char in text:
        flipped = char.swapcase()
        if flipped != char and generator.random() < probability and len(flipped) == 1:
            out.append(flipped)
            count += 1
        else:
            out.append(char)
    return "".join(out), count


def move_characters(text: str, probability: float, generator: random.Random) -> tuple[str, int]:
    """Move printable ASCII characters by one code point up or down, each with a probability."""
    out, count = [], 0
    for char in text:
        moved = char
        if LOWEST <= ord(char) <= HIGHEST and generator.random() < probability:
            code = ord(char) + generator.choice((-1, 1))
            if LOWEST <= code <= HIGHEST:
                moved = chr(code)
                count += 1
        out.append(moved)
    return "".join(out), count


def augment_as_published(text: str, sigma: float, seed: int) -> Augmented:
    """The published function, faults included: one stream, single blanks, ASCII letters only.

    Letters outside ASCII that are chosen for a case flip disappear. Kept so that published samples
    can be replayed; see `augment` for ours.
    """
    generator = random.Random(seed)  # noqa: S311
    words = []
    for word in text.split():
        if len(word) > SHORT and generator.random() < sigma**0.5:
            inner = list(word[1:-1])
            generator.shuffle(inner)
            words.append(word[0] + "".join(inner) + word[-1])
        else:
            words.append(word)
    letters = []
    for char in " ".join(words):
        if char.isalpha() and generator.random() < sigma**0.5:
            if "a" <= char <= "z":
                letters.append(char.upper())
            elif "A" <= char <= "Z":
                letters.append(char.lower())
        else:
            letters.append(char)
    out = []
    for char in "".join(letters):
        if char.isprintable() and generator.random() < sigma**3:
            code = ord(char) + generator.choice((-1, 1))
            out.append(chr(code) if LOWEST <= code <= HIGHEST else char)
        else:
            out.append(char)
    return Augmented("".join(out), 0, 0, 0)

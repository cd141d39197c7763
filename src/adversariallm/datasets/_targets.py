"""Affirmative answer prefixes for requests that come without one.

A deterministic rule of ours that reproduces the common style; it neither calls a model nor
judges the request.
"""

from __future__ import annotations

import re

RULE = "rule:affirmative-v1"
FALLBACK = "Sure, here is what you asked for"
MAX_WORDS = 24

_MAKE = re.compile(
    r"(?:write|draft|compose|create|generate|give(?: me)?|provide(?: me(?: with)?)?|list|describe|"
    r"produce|make|design|develop|prepare|outline|devise|suggest|show(?: me)?|tell(?: me)?|plan|"
    r"invent|name|craft)"
    r"\s+(?P<object>(?:an?|the|some|several|\d+|two|three|four|five|six|seven|eight|nine|ten)\s+.+)",
    re.IGNORECASE,
)
_HOW = re.compile(
    r"(?:(?:explain|describe|tell me|show me|teach me|instruct me on|outline)\s+)?"
    r"how\s+(?:to|(?:do|can|could|would|should|might)\s+(?:i|you|we|one|someone|somebody))\s+(?P<verb>.+)",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"(?:what|which|who|whom|whose|where|when|why|how|is|are|was|were|am|do|does|did|can|could|will|would|"
    r"shall|should|may|might|has|have|had|i|i'm|i'd|my|our|we|you|he|she|it|they|if|in|on|at|as|for|to|the|an?|"
    r"there|this|that|these|those|yes|no)\b",
    re.IGNORECASE,
)
_SWAP = {
    "i": "you",
    "me": "you",
    "my": "your",
    "mine": "yours",
    "myself": "yourself",
    "our": "your",
    "us": "you",
}
_PLURAL = re.compile(
    r"(?:some|several|\d\d*|two|three|four|five|six|seven|eight|nine|ten)\b", re.IGNORECASE
)


def affirmative_target(goal: str) -> str:
    """Answer prefix that takes up the request: `Sure, here is a letter ...` or `... how to ...`.

    One line, straight apostrophes, no final punctuation, at most `MAX_WORDS` words of the request.

    Args:
        goal: the request in words.
    """
    text = goal.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})
    text = re.split(r"(?<=[.?!;:])\s|\n", text.strip(), maxsplit=1)[0]
    text = re.sub(
        r"^(?:please|kindly)[,\s]+|^(?:can|could|would|will) you (?:please )?", "", text, flags=re.I
    )
    text = " ".join(text.split()).rstrip(" .?!;:,")
    if match := _HOW.fullmatch(text):
        return _finish("Sure, here is how to ", match["verb"])
    if match := _MAKE.fullmatch(text):
        plural = _PLURAL.match(match["object"])
        return _finish("Sure, here are " if plural else "Sure, here is ", match["object"])
    if not text or _QUESTION.match(text) or not text[0].isalpha():
        return FALLBACK
    return _finish("Sure, here is how to ", text[0].lower() + text[1:])


def _finish(head: str, phrase: str) -> str:
    words = [_SWAP.get(w.lower(), w) for w in phrase.split()[:MAX_WORDS]]
    return head + " ".join(words).rstrip(" .?!;:,")

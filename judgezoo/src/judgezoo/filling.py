"""Filling a prompt template: named slots replaced once, left to right, by literal text.

Braces, percent signs and tag-like strings in the values stay what they are, and so does every
character of the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from judgezoo.errors import AssetError

__all__ = ["Filled", "fill", "fill_in_order"]


@dataclass(frozen=True, slots=True)
class Filled:
    """A filled template.

    Attributes:
        text: the result.
        spans: half-open character spans of the inserted values, in order.
    """

    text: str
    spans: tuple[tuple[int, int], ...]

    def after(self, head: str) -> Filled:
        """Return the same after some more template text."""
        shift = len(head)
        spans = tuple((start + shift, end + shift) for start, end in self.spans)
        return Filled(head + self.text, spans)


def _assemble(pieces: Sequence[str], values: Sequence[str]) -> Filled:
    """Join template pieces and values alternately."""
    text, spans = pieces[0], []
    for value, piece in zip(values, pieces[1:], strict=True):
        spans.append((len(text), len(text) + len(value)))
        text += value + piece
    return Filled(text, tuple(spans))


def fill(template: str, values: Mapping[str, str]) -> Filled:
    """Replace every slot of a template.

    Args:
        template: text with slots.
        values: value by slot, the slot written as it stands in the template.

    Raises:
        AssetError: a slot does not occur in the template.
    """
    absent = [slot for slot in values if slot not in template]
    if absent:
        raise AssetError(f"the prompt has no slot {', '.join(absent)}; it must hold every one")
    pattern = re.compile("|".join(re.escape(slot) for slot in values))
    slots = pattern.findall(template)
    return _assemble(pattern.split(template), [values[slot] for slot in slots])


def fill_in_order(template: str, slot: str, values: Sequence[str]) -> Filled:
    """Replace the occurrences of one slot by values in order.

    Raises:
        AssetError: the slot occurs another number of times.
    """
    pieces = template.split(slot)
    if len(pieces) != len(values) + 1:
        raise AssetError(f"the prompt has {len(pieces) - 1} slots {slot!r}, expected {len(values)}")
    return _assemble(pieces, values)

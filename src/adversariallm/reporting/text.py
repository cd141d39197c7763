"""How hostile text and plain numbers are shown: escapes for hidden characters, units for counts.

It never shortens or alters stored text; only what is shown passes through here.
"""

from __future__ import annotations

import math
import unicodedata

from adversariallm.evaluation.intervals import Rate

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, *, keep: str = "\n\t") -> str:
    """The text with control, format, bidirectional, surrogate and unassigned characters as escapes.

    Args:
        text: anything a model said.
        keep: control characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_line(text: str) -> str:
    """Like `visible`, on a single line."""
    return visible(text, keep="")


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def rate_text(rate: Rate) -> str:
    """A rate with its interval and counts, or why there is none."""
    if rate.value is None or rate.interval is None:
        return f"none: all {rate.unscored} unscored" if rate.unscored else "none: no behaviors"
    low, high = 100 * rate.interval.low, 100 * rate.interval.high
    return f"{100 * rate.value:.1f} % [{low:.1f}, {high:.1f}]"


def quantity(value: float | None) -> str:
    """A count in at most four characters of digits: 0, 7.5, 512, 3.1k, 4.2M, 1.3e+12."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 1e9 or abs(value) < 0.01:
        return f"{value:.2g}"
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (size if unit == 'M' else 1e3):.1f}{unit}"
    whole = value == round(value) or abs(value) >= 100
    return f"{value:.0f}" if whole else f"{value:.3g}"


def seconds_text(value: float | None) -> str:
    """Seconds as `0.42 s`, `12 s`, `3 min 20 s` or `2 h 05 min`."""
    if value is None or math.isnan(value):
        return "-"
    if value < 100:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    if value < 5400:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"

"""Small charts as inline SVG for the HTML report: curves with bands and rates with whiskers.

Colors come from the page's style sheet by class, so that light and dark work; figures for papers
are `figures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from adversariallm.evaluation.curves import Curve
from adversariallm.evaluation.intervals import Rate
from adversariallm.reporting.text import percent, quantity, rate_text

WIDTH, HEIGHT = 620, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 28, 14, 44
NUM_COLORS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """A curve with its legend text."""

    label: str
    curve: Curve


def curve_chart(
    series: Sequence[Series], x_title: str, y_title: str, *, log_x: bool = False
) -> str:
    """Curves with their bands over a common axis; a single point is drawn with a whisker."""
    xs = np.concatenate([s.curve.x for s in series])
    if log_x:
        xs = xs[xs > 0]
    if not len(xs):
        return '<p class="empty">There is nothing to draw: no scored step.</p>'
    place, ticks = _x_axis(float(xs.min()), float(xs.max()), log_x)
    parts = [*_frame(ticks, place, x_title, y_title)]
    for i, s in enumerate(series):
        parts.append(_draw(s.curve, f"c{i % NUM_COLORS}", place, log_x))
    label = f"{y_title} against {x_title} for {', '.join(s.label for s in series)}"
    return _svg(WIDTH, HEIGHT, label, parts)


def _x_axis(low: float, high: float, log: bool) -> tuple[Callable[[float], float], list[float]]:
    inner = WIDTH - LEFT - RIGHT
    if log:
        a, b = math.log10(low), math.log10(high)
        if b - a < 0.5:
            a, b = a - 0.25, b + 0.25
        decades = [10.0**e for e in range(math.ceil(a), math.floor(b) + 1)]
        ticks = decades if len(decades) > 1 else [10 ** (a + (b - a) * f) for f in (0.0, 0.5, 1.0)]
        thinned = ticks[:: -(-len(ticks) // 6)]
        return lambda x: LEFT + inner * (math.log10(x) - a) / (b - a), thinned
    if high == low:
        low, high = low - 0.5, high + 0.5
        return lambda x: LEFT + inner * (x - low) / (high - low), [low + 0.5]
    return lambda x: LEFT + inner * (x - low) / (high - low), _nice_ticks(low, high)


def _nice_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _y(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)


def _frame(
    ticks: Sequence[float], place: Callable[[float], float], x_title: str, y_title: str
) -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(value)
        parts.append(_line("grid", LEFT, WIDTH - RIGHT, y, y))
        parts.append(
            f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{100 * value:.0f} %</text>'
        )
    for tick in ticks:
        x = place(tick)
        parts.append(_line("grid", x, x, _y(0), _y(0) + 4))
        parts.append(
            f'<text class="tick mid" x="{x:.1f}" y="{_y(0) + 18:.1f}">{quantity(tick)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="axis mid" x="{middle:.0f}" y="{HEIGHT - 6}">{escape(x_title)}</text>'
    )
    parts.append(
        f'<text class="axis mid" transform="rotate(-90)" x="{-(_y(0) + _y(1)) / 2:.0f}" y="12">'
        f"{escape(y_title)}</text>"
    )
    return parts


def _draw(curve: Curve, color: str, place: Callable[[float], float], log: bool) -> str:
    points = [
        (place(float(x)), float(v), float(a), float(b))
        for x, v, a, b in zip(curve.x, curve.value, curve.low, curve.high, strict=True)
        if not math.isnan(v) and (x > 0 or not log)
    ]
    if not points:
        return ""
    if len(points) == 1:
        x, v, a, b = points[0]
        return (
            f'<g class="{color}">{_line("whisker", x, x, _y(a), _y(b))}'
            f'<circle cx="{x:.1f}" cy="{_y(v):.1f}" r="4"/></g>'
        )
    line = _stairs([(x, v) for x, v, _, _ in points])
    upper = _stairs([(x, b) for x, _, _, b in points])
    lower = _stairs([(x, a) for x, _, a, _ in points])
    band = " ".join([*upper, *reversed(lower)])
    drawn = (
        f'<polygon class="band" points="{band}"/><polyline points="{" ".join(line)}"/>'
        f'<polyline class="edge" points="{" ".join(upper)}"/>'
        f'<polyline class="edge" points="{" ".join(lower)}"/>'
    )
    return f'<g class="{color}">{drawn}</g>'


def _stairs(points: Sequence[tuple[float, float]]) -> list[str]:
    """A value holds until the next budget at which it changes."""
    out: list[str] = []
    for i, (x, v) in enumerate(points):
        if i:
            out.append(f"{x:.1f},{_y(points[i - 1][1]):.1f}")
        out.append(f"{x:.1f},{_y(v):.1f}")
    return out


def rate_chart(rows: Sequence[tuple[str, Rate]], title: str) -> str:
    """One line per row: name, whisker, dot and numbers."""
    left, numbers, pitch = 14, 150, 44
    height = TOP + pitch * len(rows) + 26
    inner = WIDTH - left - numbers
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + inner * value
        parts.append(_line("grid", x, x, TOP, height - 22))
        parts.append(
            f'<text class="tick mid" x="{x:.1f}" y="{height - 6}">{100 * value:.0f} %</text>'
        )
    for i, (name, r) in enumerate(rows):
        y = TOP + pitch * i + 30
        shown = name if len(name) <= 90 else name[:89] + "\u2026"
        parts.append(
            f'<text class="name" x="0" y="{y - 12:.1f}"><title>{escape(name)}</title>'
            f"{escape(shown)}</text>"
        )
        if r.value is not None and r.interval is not None:
            a, b = (left + inner * v for v in (r.interval.low, r.interval.high))
            parts.append(
                f'<g class="c{i % NUM_COLORS}">{_line("whisker", a, b, y, y)}'
                f'<circle cx="{left + inner * r.value:.1f}" cy="{y:.1f}" r="4"/></g>'
            )
            text = f"{percent(r.value)} [{100 * r.interval.low:.0f}, {100 * r.interval.high:.0f}]"
        else:
            text = rate_text(r)
        parts.append(
            f'<text class="tick end" x="{WIDTH - 4}" y="{y + 4:.1f}">{escape(text)}</text>'
        )
    label = f"{title}: " + "; ".join(f"{name} {rate_text(r)}" for name, r in rows)
    return _svg(WIDTH, height, label, parts)


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )

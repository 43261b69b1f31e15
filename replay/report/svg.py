"""Small parts of a drawing: elements, scales, ticks, and labels that don't overlap.

Everything here is a pure function from numbers and text to escaped SVG. Lengths are in the
drawing's own units: one is about a pixel on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 360.0
COLOURS = 7
"""The number of colours; further series repeat them with another dash and mark."""
_MARK = 3.5
"""The size of a series' marks."""
_MOST_DECIMALS = 5
_DASHES = (None, "6 3", "2 2", "8 2 2 2")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between `low` and `high` to lengths between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The length for a value; values outside are drawn at the border."""
        span = self.high - self.low
        part = (value - self.low) / span if span > 0 else 0.5
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        title: The quantity with its unit.
        low: The value at the chart's left or bottom.
        high: The value at the chart's right or top.
        ticks: Values and their labels.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


def el(name: str, *children: object, **attributes: object) -> Markup:
    """An element; text is escaped, `None` leaves an attribute out, `class_` is `class`."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"')
    inner = "".join(escape(child) for child in children)
    parts.append(f">{inner}</{name}>" if inner else "/>")
    return Markup("".join(parts))


def _plain(value: object) -> object:
    return number(value) if isinstance(value, float) else value


def number(value: float) -> str:
    """A length, with at most one decimal."""
    text = f"{value:.1f}"
    text = text.removesuffix(".0")
    return "0" if text == "-0" else text


def drawing(height: float, label: str, *children: object) -> Markup:
    """A whole drawing, with a label for readers who can't see it."""
    box = f"0 0 {number(WIDTH)} {number(height)}"
    return el("svg", *children, viewBox=box, role="img", aria_label=label)


def text(
    x: float, y: float, words: str, *, anchor: str | None = None, class_: str | None = None
) -> Markup:
    """Text at a place; `anchor` is start (the default), middle or end."""
    return el("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def hover(words: str) -> Markup:
    """The text shown when the pointer rests on the parent."""
    return el("title", words)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a line through points, without points that make no visible difference."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if len(kept) >= 2 and _between(kept[-2], kept[-1], point):
            kept[-1] = point
        else:
            kept.append(point)
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in kept)


def _between(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    # Only horizontal stretches are reduced; that is where long flat curves have their points.
    return abs(a[1] - b[1]) < 0.05 and abs(b[1] - c[1]) < 0.05 and a[0] <= b[0] <= c[0]


def colour(series: int) -> str:
    """The CSS class with a series' colour."""
    return f"c{series % COLOURS}"


def dash(series: int) -> str | None:
    """The dash pattern of a series' line."""
    return _DASHES[series // COLOURS % len(_DASHES)]


def mark(x: float, y: float, series: int, words: str | None = None) -> Markup:
    """The mark of a series, whose shape changes along with its colour from series to series."""
    inside = (hover(words),) if words else ()
    style = f"mark {colour(series)}"
    shape = series % 4
    if shape == 0:
        return el("circle", *inside, cx=x, cy=y, r=_MARK, class_=style)
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape]
    points = " ".join(f"{number(x + _MARK * dx)},{number(y + _MARK * dy)}" for dx, dy in corners)
    return el("polygon", *inside, points=points, class_=style)


def legend_mark(series: int) -> Markup:
    """A series' line and mark, for the legend."""
    return el(
        "svg",
        el("path", d="M0 6L26 6", class_=f"line {colour(series)}", stroke_dasharray=dash(series)),
        mark(13.0, 6.0, series),
        viewBox="0 0 26 12",
        class_="key",
        aria_hidden="true",
    )


def ticks(low: float, high: float, wanted: int = 5) -> list[tuple[float, str]]:
    """Round values between `low` and `high`, at most `wanted` + 1."""
    if not high > low:
        return [(low, f"{low:g}")]
    step = _step(high - low, wanted)
    return _multiples(step, math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9))


def _step(span: float, wanted: int) -> float:
    rough = span / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _multiples(step: float, first: int, last: int) -> list[tuple[float, str]]:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    form = f",.{decimals}f" if decimals <= _MOST_DECIMALS else ".3g"
    return [(index * step, f"{index * step:{form}}") for index in range(first, last + 1)]


def share_axis(title: str, high: float = 1.0) -> Axis:
    """An axis for a share, from 0."""
    step = 0.25 if high <= 1 else 0.5
    count = round(high / step)
    at = [index * step for index in range(count + 1)]
    return Axis(title, 0.0, high, [(value, f"{value * 100:.0f} %") for value in at])


def count_axis(title: str, high: float, wanted: int = 4) -> Axis:
    """An axis for a quantity, from 0 to a round value of at least `high`."""
    step = _step(high if high > 0 else 1.0, wanted)
    last = max(1, math.ceil(high / step - 1e-9))
    return Axis(title, 0.0, last * step, _multiples(step, 0, last))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places close to those wanted, in the same order, at least `gap` apart, within bounds."""
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    placed = [0.0] * len(wanted)
    at = low
    for index in order:
        placed[index] = at = max(at, wanted[index])
        at += gap
    limit = high
    for index in reversed(order):
        placed[index] = limit = min(limit, placed[index])
        limit -= gap
    return placed


def shorten(words: str, length: int) -> str:
    """Cuts the middle out of a text that is too long: names differ at their ends."""
    if len(words) <= length:
        return words
    tail = (length - 1) // 2
    return f"{words[: length - 1 - tail].rstrip()}…{words[-tail:].lstrip()}"

"""Charts of rows: bars from zero, and estimates with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from replay.report.lines import Point
from replay.report.svg import (
    WIDTH,
    Axis,
    Scale,
    colour,
    drawing,
    el,
    hover,
    line,
    mark,
    shorten,
    text,
)
from scheduler.shares import percent

_HEAD = 17.0
_BAR = 15.0
_GAP = 8.0
_BOTTOM = 36.0
_LETTERS = 16
_HEAD_LETTERS = 52
"""As many bold letters as fit into the width, also in a wide font such as DejaVu Sans."""
_LETTER, _ROOM = 6.5, 88.0
"""The label at a bar's end: the width of each letter, and the least width of all labels."""
_EDGE = 14.0
_LANE, _LEAST, _MOST = 6.5, 12.0, 70.0
"""The marks in one row: the height of each, and the least and greatest height of all."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a series.

    Attributes:
        name: The label before it.
        series: Gives the colour.
        value: Its length.
        words: The value with its unit, shown at its end.
        low: The lower end of its confidence interval; None without one.
        high: The upper end.
    """

    name: str
    series: int
    value: float
    words: str
    low: float | None = None
    high: float | None = None


def head(name: str, told: str = "") -> str:
    """The heading of a group or a row; if it is too long, the name is cut, not the rest."""
    return f"{shorten(name, max(9, _HEAD_LETTERS - len(told)))}{told}"


def bar_chart(label: str, groups: Sequence[tuple[str, Sequence[Bar]]], x: Axis) -> Markup:
    """Horizontal bars in groups, each bar with its name before and its value after it."""
    longest = max((len(bar.words) for _, bars in groups for bar in bars), default=0)
    across = Scale(x.low, x.high, 112.0, WIDTH - max(_ROOM, _LETTER * longest))
    parts: list[Markup] = []
    y = 2.0
    for above, bars in groups:
        if above:
            parts.append(text(0, y + 11, above, class_="head"))
            y += _HEAD
        for bar in bars:
            parts.append(_bar(bar, y, across))
            y += _BAR
        y += _GAP
    y -= _GAP
    return drawing(y + _BOTTOM, label, _axis(x, across, y + 2), *parts)


def _bar(bar: Bar, y: float, across: Scale) -> Markup:
    middle = y + _BAR / 2
    box = el(
        "rect",
        x=across.start,
        y=y + 2,
        width=across(bar.value) - across.start,
        height=_BAR - 4,
        class_=f"fill {colour(bar.series)}",
    )
    reach = across(bar.value if bar.high is None else bar.high)
    whisker: Markup | str = ""
    if bar.low is not None and bar.high is not None:
        whisker = line(across(bar.low), middle, across(bar.high), middle, "interval")
    return el(
        "g",
        hover(f"{bar.name}: {bar.words}"),
        text(across.start - 5, middle + 3.5, shorten(bar.name, _LETTERS), anchor="end"),
        box,
        whisker,
        text(reach + 4, middle + 3.5, bar.words, class_="name"),
    )


def _axis(x: Axis, across: Scale, bottom: float) -> Markup:
    parts = [line(across.start, bottom, across.end, bottom, "base")]
    for value, words in x.ticks:
        parts.append(line(across(value), 0.0, across(value), bottom, "level"))
        parts.append(text(across(value), bottom + 13, words, anchor="middle"))
    middle = (across.start + across.end) / 2
    parts.append(text(middle, bottom + 29, x.title, anchor="middle", class_="axis"))
    return Markup("").join(parts)


@dataclass(frozen=True, slots=True)
class Dots:
    """A row of estimates.

    Attributes:
        name: The heading above them.
        points: Series and estimate; only x counts, and `low` and `high` are along x.
        bound: The bound to show; None if unknown.
    """

    name: str
    points: Sequence[tuple[int, Point]]
    bound: float | None = None


def dot_chart(label: str, rows: Sequence[Dots], x: Axis, zero: bool = False) -> Markup:
    """Rows of marks with their intervals; `zero` draws a line at 0 in each."""
    across = Scale(x.low, x.high, _EDGE, WIDTH - _EDGE)
    parts: list[Markup] = []
    y = 0.0
    for row in rows:
        parts.append(text(0, y + 12, row.name, class_="head"))
        lanes = max(1, len(row.points))
        height = min(_MOST, max(_LEAST, _LANE * lanes))
        if zero:
            parts.append(line(across(0.0), y + _HEAD, across(0.0), y + _HEAD + height, "deadline"))
        parts.append(_dots(row, y + _HEAD, height, across))
        y += _HEAD + height + _GAP
    return drawing(y + _BOTTOM, label, _axis(x, across, y), *parts)


def _dots(row: Dots, y: float, height: float, across: Scale) -> Markup:
    parts: list[Markup] = []
    if row.bound is not None:
        place = across(row.bound)
        inside = hover(f"bound: {percent(row.bound)}")
        box = {"x": place - 1.5, "y": y, "width": 3.0, "height": height}
        parts.append(el("rect", inside, class_="bound-tick", **box))
    step = height / max(1, len(row.points))
    for lane, (series, point) in reversed(list(enumerate(row.points))):
        middle = y + step * (lane + 0.5)
        if point.low is not None and point.high is not None:
            ends = across(point.low), middle, across(point.high), middle
            parts.append(line(*ends, f"line {colour(series)} thin"))
        parts.append(mark(across(point.x), middle, series, point.words))
    return Markup("").join(parts)

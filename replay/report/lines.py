"""Line charts: a share over load, over latency, or over the promised share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from replay.report.svg import (
    WIDTH,
    Axis,
    Scale,
    colour,
    dash,
    drawing,
    el,
    hover,
    line,
    mark,
    path,
    shorten,
    spread,
    text,
)

_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 104.0, 24.0, 36.0
HEIGHT = 260.0
_LABEL_GAP = 12.5
_LABEL_LETTERS = 14
_WHISKER_GAP, _WHISKER_ROOM = 2.5, 8.0
"""The distance between the whiskers at one x, and the most that all of them take."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a line.

    Attributes:
        x: The value along the x axis.
        y: The value along the y axis.
        words: The text shown when the pointer rests on it.
        low: The lower end of its confidence interval; None without one.
        high: The upper end.
    """

    x: float
    y: float
    words: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A series of points in order of x.

    Attributes:
        name: The label at its end; none if empty.
        points: The points.
        series: Gives colour, dash and mark; None for a reference line.
        marks: Whether each point has a mark.
        joined: Whether the points are joined.
    """

    name: str
    points: Sequence[Point]
    series: int | None
    marks: bool = True
    joined: bool = True


def line_chart(
    label: str, lines: Sequence[Line], x: Axis, y: Axis, at: tuple[float, str] | None = None
) -> Markup:
    """A chart with the lines' names at their ends.

    Args:
        label: What the chart says, for readers who can't see it.
        lines: The lines, the first one on top.
        x: The horizontal axis.
        y: The vertical axis.
        at: A value of x to mark, with its name.
    """
    right = WIDTH - _RIGHT
    across = Scale(x.low, x.high, _LEFT, right)
    up = Scale(y.low, y.high, HEIGHT - _BOTTOM, _TOP)
    return drawing(
        HEIGHT,
        label,
        _frame(x, y, across, up),
        _marked(at, across) if at else "",
        *_whiskers(lines, across, up),
        *(_line(each, across, up) for each in reversed(lines)),
        *(_marks(each, across, up) for each in reversed(lines)),
        _names(lines, across, up),
    )


def _frame(x: Axis, y: Axis, across: Scale, up: Scale) -> Markup:
    parts = [text(0, 9, y.title, class_="axis")]
    for value, words in y.ticks:
        parts.append(line(across.start, up(value), across.end, up(value), "level"))
        parts.append(text(across.start - 5, up(value) + 3.5, words, anchor="end"))
    bottom = up.start
    parts.append(line(across.start, bottom, across.end, bottom, "base"))
    for value, words in x.ticks:
        parts.append(line(across(value), bottom, across(value), bottom + 3, "base"))
        parts.append(text(across(value), bottom + 14, words, anchor="middle"))
    middle = (across.start + across.end) / 2
    parts.append(text(middle, bottom + 30, x.title, anchor="middle", class_="axis"))
    return Markup("").join(parts)


def _marked(at: tuple[float, str], across: Scale) -> Markup:
    place = across(at[0])
    words = text(place, _TOP - 4, at[1], anchor="middle", class_="axis")
    return line(place, _TOP, place, HEIGHT - _BOTTOM, "deadline") + words


def _whiskers(lines: Sequence[Line], across: Scale, up: Scale) -> list[Markup]:
    """The intervals, side by side: at one x, those of several lines would hide each other."""
    wide = [each for each in lines if any(point.low is not None for point in each.points)]
    gap = min(_WHISKER_GAP, _WHISKER_ROOM / max(1, len(wide) - 1))
    return [
        _whiskers_of(each, across, up, (index - (len(wide) - 1) / 2) * gap)
        for index, each in enumerate(wide)
    ]


def _whiskers_of(each: Line, across: Scale, up: Scale, aside: float) -> Markup:
    parts = []
    for point in each.points:
        if point.low is not None and point.high is not None:
            x = across(point.x) + aside
            parts.append(line(x, up(point.low), x, up(point.high), _class(each)))
    return el("g", *parts, class_="whiskers")


def _line(each: Line, across: Scale, up: Scale) -> Markup:
    if not each.joined or len(each.points) < 2:
        return Markup("")
    return el(
        "path",
        hover(each.name),
        d=path([(across(point.x), up(point.y)) for point in each.points]),
        class_=_class(each),
        stroke_dasharray=None if each.series is None else dash(each.series),
    )


def _class(each: Line) -> str:
    return "line bound" if each.series is None else f"line {colour(each.series)}"


def _marks(each: Line, across: Scale, up: Scale) -> Markup:
    if each.series is None or not each.marks:
        return Markup("")
    return Markup("").join(
        mark(across(point.x), up(point.y), each.series, point.words) for point in each.points
    )


def _names(lines: Sequence[Line], across: Scale, up: Scale) -> Markup:
    named = [each for each in lines if each.name and each.points]
    room = int((up.start - up.end) / _LABEL_GAP) + 1
    if len(named) > room:
        return Markup("")
    ends = [(across(each.points[-1].x), up(each.points[-1].y)) for each in named]
    places = spread([y for _, y in ends], _LABEL_GAP, up.end, up.start)
    parts = []
    for each, (x, y), place in zip(named, ends, places, strict=True):
        d = f"M{x + 5:.1f} {y:.1f}L{across.end + 8:.1f} {place:.1f}h5"
        parts.append(el("path", d=d, class_=f"{_class(each)} leader"))
        words = shorten(each.name, _LABEL_LETTERS)
        parts.append(text(across.end + 16, place + 3.5, words, class_="name"))
    return Markup("").join(parts)

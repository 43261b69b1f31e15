"""One run over time: how requests ended, the queue, and the load of the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from replay.report.figures import ENDINGS, Floats, Timeline
from replay.report.svg import (
    WIDTH,
    Scale,
    count_axis,
    drawing,
    el,
    hover,
    line,
    number,
    shorten,
    text,
    ticks,
)
from scheduler.shares import percent

_LEFT, _RIGHT = 76.0, 8.0
_ENDINGS_HEIGHT, _QUEUE_HEIGHT, _STRIP = 84.0, 56.0, 14.0
_TARGETS = 12
_LEVELS = 5


@dataclass(frozen=True, slots=True)
class Heights:
    """The scales that the panels of several runs share, so that they can be compared.

    Attributes:
        end_s: The length of the longest run.
        rate: The most requests per second.
        queue: The longest queue.
    """

    end_s: float
    rate: float
    queue: float


def heights(timelines: Sequence[Timeline]) -> Heights:
    """The greatest values of several runs."""
    return Heights(
        max((each.bin_s * each.endings.shape[1] for each in timelines), default=1.0),
        max((float(np.max(each.endings.sum(axis=0))) for each in timelines), default=1.0),
        max((float(np.max(each.queue_high)) for each in timelines), default=1.0),
    )


def time_chart(label: str, shown: Timeline, shared: Heights) -> Markup:
    """Endings, stacked, above the queue and the targets if known, with one axis of time."""
    across = Scale(0.0, shared.end_s, _LEFT, WIDTH - _RIGHT)
    edges = [across(shown.bin_s * index) for index in range(shown.endings.shape[1] + 1)]
    y = 22.0
    rates = Scale(0.0, count_axis("", shared.rate, 3).high, y + _ENDINGS_HEIGHT, y)
    parts = [text(0, 9, "requests per second, by how they ended", class_="axis")]
    parts += [_levels(rates, shared.rate), _stack(shown.endings, edges, rates)]
    y = rates.start + 26
    if shown.looked:
        y += 8
        parts.append(text(0, y - 12, "waiting: mean (line) and most (area)", class_="axis"))
        queue = Scale(0.0, count_axis("", max(1.0, shared.queue), 2).high, y + _QUEUE_HEIGHT, y)
        parts += [_levels(queue, max(1.0, shared.queue), 2), _queue(shown, edges, queue)]
        y = queue.start + 26
    names = list(shown.busy)[:_TARGETS]
    if names:
        more = f", {_TARGETS} of {len(shown.busy)} targets" if len(shown.busy) > _TARGETS else ""
        if any(shown.down[name].any() for name in names):
            more += ", dashes: down"
        parts.append(
            text(0, y - 5, f"busy: share of the time, fuller colour is more{more}", class_="axis")
        )
    else:
        y -= 18
    for name in names:
        parts.append(_strip(name, shown.busy[name], shown.down[name], edges, y))
        y += _STRIP
    return drawing(y + 32, label, *parts, _time_axis(shared.end_s, across, y))


def _levels(up: Scale, most: float, wanted: int = 3) -> Markup:
    parts = []
    for value, words in count_axis("", most, wanted).ticks:
        parts.append(line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "level"))
        parts.append(text(_LEFT - 5, up(value) + 3.5, words, anchor="end"))
    return Markup("").join(parts)


def _time_axis(end_s: float, across: Scale, y: float) -> Markup:
    unit, factor = next(
        (unit, factor)
        for unit, factor, least in (
            ("h", 3600, 10800),
            ("min", 60, 300),
            ("s", 1, 1),
            ("ms", 1e-3, 0),
        )
        if end_s >= least
    )
    parts = [line(_LEFT, y + 3, WIDTH - _RIGHT, y + 3, "base")]
    for value, words in ticks(0.0, end_s / factor, 5):
        parts.append(text(across(value * factor), y + 15, words, anchor="middle"))
    middle = (across.start + across.end) / 2
    parts.append(
        text(middle, y + 29, f"time since the start ({unit})", anchor="middle", class_="axis")
    )
    return Markup("").join(parts)


def _stack(endings: Floats, edges: Sequence[float], up: Scale) -> Markup:
    parts = []
    below = np.zeros(endings.shape[1])
    for index, name in enumerate(ENDINGS):
        above = below + endings[index]
        if endings[index].any():
            share = endings[index].sum() / endings.sum()
            d = _area(edges, [up(v) for v in above], [up(v) for v in below])
            parts.append(el("path", hover(f"{name}: {percent(share)}"), d=d, class_=f"e{index}"))
        below = above
    return Markup("").join(parts)


def _area(edges: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
    """A path that steps along the tops and back along the bottoms."""
    there = _steps(edges, tops)
    back = _steps(edges[::-1], bottoms[::-1])
    return f"M{there}L{back}Z"


def _steps(edges: Sequence[float], levels: Sequence[float]) -> str:
    parts = [f"{number(edges[0])} {number(levels[0])}"]
    for index, level in enumerate(levels):
        if index == len(levels) - 1 or number(levels[index + 1]) != number(level):
            parts.append(f"H{number(edges[index + 1])}")
            if index < len(levels) - 1:
                parts.append(f"V{number(levels[index + 1])}")
    return "".join(parts)


def _queue(shown: Timeline, edges: Sequence[float], up: Scale) -> Markup:
    base = [up(0.0)] * len(shown.queue_high)
    high = _area(edges, [up(value) for value in shown.queue_high], base)
    mean = "M" + _steps(edges, [up(value) for value in shown.queue_mean])
    most = f"at most {np.max(shown.queue_high):,.0f} waited"
    return el("path", hover(most), d=high, class_="queue") + el("path", d=mean, class_="line ink")


def _strip(name: str, busy: Floats, down: Floats, edges: Sequence[float], y: float) -> Markup:
    """A target's utilisation as spans of equal shade: one path for each shade."""
    level = np.ceil(np.clip(busy, 0.0, 1.0) * _LEVELS - 1e-9).astype(int).tolist()
    runs: dict[int, list[str]] = {}
    begin = 0
    for index in range(1, len(level) + 1):
        if index == len(level) or level[index] != level[begin]:
            width = number(edges[index] - edges[begin])
            shape = (
                f"M{number(edges[begin])} {number(y + 1)}h{width}v{number(_STRIP - 3)}h-{width}z"
            )
            runs.setdefault(level[begin], []).append(shape)
            begin = index
    shades = [
        el("path", d="".join(runs[shade]), class_="busy", fill_opacity=f"{shade / _LEVELS:g}")
        for shade in sorted(runs)
        if shade
    ]
    frame = el(
        "rect",
        x=edges[0],
        y=y + 1,
        width=edges[-1] - edges[0],
        height=_STRIP - 3,
        class_="idle",
    )
    away = f", down {float(down.mean()) * 100:.0f} %" if down.any() else ""
    return el(
        "g",
        hover(f"{name}: busy {float(busy.mean()) * 100:.0f} % of the time{away}"),
        text(_LEFT - 5, y + 10, shorten(name, 11), anchor="end"),
        frame,
        *shades,
        *_dashes(down, edges, y + _STRIP / 2),
    )


def _dashes(down: Floats, edges: Sequence[float], y: float) -> Iterator[Markup]:
    """A line through each span of bins in which a target was down."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], down > 0, [0]])))
    for begin, end in zip(changes[::2], changes[1::2], strict=True):
        yield line(edges[begin], y, edges[end], y, "down")

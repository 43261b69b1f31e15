"""The demo's display: a live table on a terminal, a line per phase elsewhere, and a summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from replay.demo.cameras import Run
from replay.demo.figures import Phase, group, percentiles
from scheduler.shares import percent

Figures = Mapping[str, Any]

_BAR = 40
_REFRESH_PER_S = 4


class Screen:
    """The display of the demo.

    On a terminal a thread redraws it several times a second, so that drawing never delays the load
    generator.
    """

    def __init__(self, console: Console) -> None:
        """Shows nothing yet."""
        self.console = console
        self._targets: Sequence[Figures] = ()
        self._done: list[tuple[Phase, Figures]] = []
        self._now: tuple[Phase, Run, float] | None = None
        self._note = ""
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._render,
                refresh_per_second=_REFRESH_PER_S,
                transient=True,
            )

    def __enter__(self) -> Screen:
        """Starts drawing."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the drawing; the lines of `say` stay."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "", indent: int = 0) -> None:
        """Prints a line that stays; it is wrapped only on a terminal."""
        if self._live is None:
            line = " " * indent + text
            self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        else:
            self.console.print(Padding(Text(text, style=style), (0, 0, 0, indent)))

    def note(self, text: str) -> None:
        """Shows a line until the next one; where nothing is drawn, the line stays."""
        self._note = text
        if self._live is None and text:
            self.say(text, indent=2)

    def targets(self, targets: Sequence[Figures]) -> None:
        """Shows the targets' progress in getting ready."""
        self._targets = targets

    def begin(self, phase: Phase, run: Run, seconds: float) -> None:
        """Shows that a phase begins."""
        self._targets = ()
        self._note = ""
        if self._live is None:
            self.say(f"\n{phase.title}: {phase.why}")
        self._now = phase, run, seconds

    def end(self, phase: Phase, figures: Figures) -> None:
        """Shows that a phase is over."""
        self._now = None
        self._done.append((phase, figures))
        if self._live is None:
            self.say(phase_line(figures), indent=2)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._targets:
            parts += map(_progress, self._targets)
        if self._done or self._now is not None:
            parts += [Text(), self._table(), Text()]
        if self._now is not None:
            phase, run, seconds = self._now
            parts.append(_clock(run, seconds))
            parts.append(Padding(Text(phase.why, style="dim"), (0, 0, 0, 2)))
        if self._note:
            parts.append(Text(f"  {self._note}", style="bold"))
        return Group(*parts)

    def _table(self) -> Table:
        table = _requests_table()
        for phase, figures in self._done:
            _add_requests(table, phase.title, figures)
        if self._now is not None:
            phase, run, _ = self._now
            _add_requests(table, phase.title, _so_far(run), style="bold")
        return table


# -- while it runs


def _progress(target: Figures) -> RenderableType:
    step = target["progress"]
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=step["total"] or None, completed=step["done"], width=24)
    row.add_row(f"  {target['id']}", bar, step["text"])
    return row


def _clock(run: Run, seconds: float) -> RenderableType:
    now_s = run.now_s()
    played = 0.0 if math.isnan(now_s) else min(now_s, seconds)
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=seconds, completed=played, width=_BAR)
    row.add_row(" ", bar, f"{played:.0f} of {seconds:.0f} s")
    return row


def _so_far(run: Run) -> dict[str, Any]:
    tally = run.tally
    return {
        "sent": tally.sent,
        **group(dict(tally.verdicts)),
        "latency_ms": percentiles(list(tally.latencies_ms)),
        "accuracy": tally.correct / tally.answered if tally.answered else None,
    }


def phase_line(figures: Figures) -> str:
    """A phase in one line."""
    counts = ", ".join(
        f"{figures[key]:,} {key.replace('_', ' ')}"
        for key in ("in_time", "late", "refused", "expired", "other", "unfinished")
        if figures[key] or key == "in_time"
    )
    latency = figures["latency_ms"]
    return (
        f"{figures['sent']:,} sent: {counts}; "
        f"p50 {number(latency['p50'])} ms, p99 {number(latency['p99'])} ms; "
        f"{share(figures['accuracy'])} right"
    )


# -- at the end


def summary(figures: Figures, titles: Mapping[str, str]) -> RenderableType:
    """The results of the demo."""
    rows = [(titles[phase["name"]], phase) for phase in figures["phases"]]
    requests = _requests_table()
    for title, phase in rows:
        _add_requests(requests, title, phase)
    return Group(
        Text(),
        requests,
        Text(),
        _possible_table(rows),
        Text(),
        *_overload(figures),
        *_recovery(figures["recovery"]),
        Text(),
        *_verdict(figures),
    )


def _requests_table() -> Table:
    columns = ("requests", "sent", "in time", "late", "refused", "expired", "p50 ms", "p99 ms")
    return _table(*columns, "right")


def _add_requests(table: Table, title: str, figures: Figures, style: str = "") -> None:
    latency = figures["latency_ms"]
    table.add_row(
        title,
        f"{figures['sent']:,}",
        Text(f"{figures['in_time']:,}", style="green"),
        _count(figures["late"], "yellow"),
        _count(figures["refused"], "cyan"),
        _count(figures["expired"] + figures["other"] + figures["unfinished"], "red"),
        number(latency["p50"]),
        number(latency["p99"]),
        share(figures["accuracy"]),
        style=style,
    )


def _possible_table(rows: Sequence[tuple[str, Figures]]) -> Table:
    table = _table(
        "per second", "sent", "possible", "in time", "share", "deadline used", "refused after"
    )
    for title, phase in rows:
        used, heard = phase["deadline_used"], phase["refusal_ms"]
        table.add_row(
            title,
            number(phase["offered_per_s"]),
            number(phase["possible_per_s"]),
            Text(number(phase["goodput_per_s"]), style="green"),
            Text(share(phase["share_of_possible"]), style="bold"),
            f"{_whole(used['p50'])}, {_whole(used['p99'])}" if used["p50"] else "",
            f"{number(heard['p50'])}, {number(heard['p99'])} ms" if heard["p50"] else "",
        )
    table.caption = (
        "possible: what a perfect scheduler of this box could do, the smaller of load and "
        "capacity; deadline used, refused after: p50 and p99"
    )
    table.caption_justify = "left"
    return table


def _overload(figures: Figures) -> Iterator[RenderableType]:
    overload = figures["overload"]
    if not overload:
        return
    yield Text("In time at twice the load, as a share of what was possible", style="bold")
    grid = Table.grid(padding=(0, 2))
    for policy, style in (("fcfs", "red"), ("goodput", "green")):
        found = overload[policy]
        bar = Text("█" * round(_BAR * min(1.0, found)), style=style)
        bar.append("░" * (_BAR - len(bar)), style="dim")
        grid.add_row(f"  {policy}", bar, share(found))
    yield grid
    yield Text()


def _recovery(found: Figures | None) -> Iterator[RenderableType]:
    if found is None:
        return
    again = found["results_again_s"]
    said = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(found["outcomes"].items()))
    line = Text(f"kill -9 of {found['target']} (pid {found['pid']}): ", style="bold")
    if again is None:
        line.append("no more results came", style="red")
    else:
        line.append(f"results again after {again:.2f} s", style="not bold green")
    line.append(f"; sent meanwhile: {said or 'nothing'}", style="not bold")
    yield line


def _verdict(figures: Figures) -> Iterator[RenderableType]:
    found = figures["laws"]
    if found["kept"]:
        total = sum(phase["sent"] for phase in figures["phases"])
        yield Text(
            f"All {total:,} requests have an outcome, and none was answered late unless that was "
            "asked for.",
            style="green",
        )
    for sentence in found["broken"]:
        yield Text(f"Law broken: {sentence}", style="bold red")
    if figures["left_over"]:
        yield Text(
            f"{figures['left_over']} processes of the agent had to be killed at the end.",
            style="yellow",
        )


# -- formatting


def _table(first: str, *columns: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold",
    )
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _count(count: int, style: str) -> Text:
    return Text(f"{count:,}", style=style if count else "dim")


def number(value: float | None) -> str:
    """Two or three significant digits, all digits from 100 on; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _whole(share: float) -> str:
    """A share in whole per cent; less than all is never 100."""
    return f"{math.floor(share * 100) if 0.99 < share < 1 else share * 100:.0f} %"


def share(value: float | None) -> str:
    """A percentage; empty for None."""
    return "" if value is None else percent(value)

"""A chart of the on-time share over load, as a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from replay.report.cases import study
from replay.report.lines import HEIGHT
from replay.report.rows import head
from replay.report.sections import load_charts
from replay.report.svg import WIDTH, el, hover, number, text
from replay.results import RunResult
from scheduler.files import write_output

_STYLE = Path(__file__).with_name("drawing.css")
_HEAD, _MARGIN = 20.0, 8.0


def write_chart(results: Sequence[RunResult], path: Path) -> None:
    """Writes a self-contained SVG file; the same results give the same bytes.

    Args:
        results: The runs; each scenario gets a chart, one below another.
        path: The file to write.

    Raises:
        OSError: The file can't be written.
        ValueError: No scenario was played at two loads.
    """
    charts = load_charts(study(results))
    if not charts:
        raise ValueError("nothing was played at two loads")
    parts, top = [], 0.0
    for name, chart in charts:
        above = text(WIDTH / 2, top + 0.7 * _HEAD, head(name), anchor="middle", class_="head")
        parts.append(el("g", hover(name), above))
        parts.append(el("svg", chart, y=top + _HEAD, width=WIDTH, height=HEIGHT))
        top += _HEAD + HEIGHT
    drawn = el(
        "svg",
        el("style", Markup(_STYLE.read_text(encoding="utf-8"))),
        el("rect", x=-_MARGIN, width="100%", height="100%", class_="paper"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"{number(-_MARGIN)} 0 {number(WIDTH + 2 * _MARGIN)} {number(top)}",
        role="img",
        aria_label="What is on time over load",
    )
    write_output(path, f"{drawn}\n".encode("utf-8", "replace"))

"""Where the figures of a benchmark go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_figures(figures: Mapping[str, Any], path: Path | None) -> None:
    """Writes figures as JSON to a file, or prints them where there is none."""
    text = json.dumps(figures, indent=2)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")


def print_contenders(figures: Mapping[str, Mapping[str, Any]], rows: Iterable[str]) -> None:
    """Prints a table with a column for each contender; what one lacks stays empty."""
    print(f"{'':20}" + "".join(f"{contender:>18}" for contender in figures))
    for row in rows:
        values = (figures[contender].get(row) for contender in figures)
        shown = ("" if value is None else f"{value:.3f}" for value in values)
        print(f"{row:20}" + "".join(f"{value:>18}" for value in shown))

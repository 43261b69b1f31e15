"""Write or print the figures of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_figures(figures: Mapping[str, Any], path: Path | None) -> None:
    """Write figures as JSON to a file, or print them if there is none."""
    text = json.dumps(figures, indent=2)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")


def print_contenders(figures: Mapping[str, Mapping[str, Any]], rows: Iterable[str]) -> None:
    """Print a table with a column per contender; missing values stay empty."""
    print(f"{'':20}" + "".join(f"{contender:>18}" for contender in figures))
    for row in rows:
        values = (figures[contender].get(row) for contender in figures)
        shown = ("" if value is None else f"{value:.3f}" for value in values)
        print(f"{row:20}" + "".join(f"{value:>18}" for value in shown))

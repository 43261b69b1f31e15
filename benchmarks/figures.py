"""Where the figures of a benchmark go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_figures(figures: Mapping[str, Any], path: Path | None) -> None:
    """Writes figures as JSON to a file, or prints them where there is none."""
    text = json.dumps(figures, indent=2)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")

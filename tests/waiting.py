"""Waiting for what other threads and processes do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 100


def eventually(true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Returns once it holds; an assertion fails where it does not in time."""
    end_s = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end_s, f"not within {patience_s:g} s"
        time.sleep(0.01)

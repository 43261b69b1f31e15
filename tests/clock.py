"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """In nanoseconds; it stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

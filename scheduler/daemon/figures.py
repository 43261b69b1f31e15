"""Rounds figures for answers."""

from __future__ import annotations

_DIGITS = 9


def amount(value: float) -> float:
    """A sum, rounded to nine significant digits: further ones are rounding errors of adding."""
    return float(f"{value:.{_DIGITS}g}")


def milliseconds(ns: float) -> float:
    """Nanoseconds as milliseconds, to the microsecond."""
    return round(ns / 1e6, 3)

"""Figures as answers tell them."""

from __future__ import annotations

_DIGITS = 9


def amount(value: float) -> float:
    """A sum of many, to nine significant digits: those beyond are of the additions."""
    return float(f"{value:.{_DIGITS}g}")


def milliseconds(ns: float) -> float:
    """Nanoseconds as milliseconds, to the microsecond."""
    return round(ns / 1e6, 3)

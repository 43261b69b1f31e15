"""Figures as people read them."""

from __future__ import annotations


def figure(value: float) -> str:
    """A number with three significant digits, or rounded to an integer from 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

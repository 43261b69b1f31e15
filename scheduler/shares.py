"""Shares as people read them: nothing less than all is shown as all."""

from __future__ import annotations


def per_cent(share: float) -> str:
    """A share in per cent; only a full share is 100, and only an empty one 0."""
    if 0.999 <= share < 1:
        return f"{int(share * 10000) / 100:.2f}"
    if 0 < share < 0.0005:
        return "< 0.1"
    return f"{100 * share:.1f}"


def percent(share: float) -> str:
    """The same with its sign: `93.4 %`."""
    return f"{per_cent(share)} %"

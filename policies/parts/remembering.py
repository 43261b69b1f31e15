"""The bound on what parts remember of classes, and of the like, that may not come again."""

from __future__ import annotations

from typing import Any

MOST_KINDS = 200
"""How many are remembered."""


def make_room(known: dict[Any, Any]) -> None:
    """Forgets all of them if one more would be too many."""
    if len(known) >= MOST_KINDS:
        known.clear()

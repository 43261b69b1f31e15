"""Recognises a far end that gives up a request long before its timeout."""

from __future__ import annotations

_EARLY = 0.5


def is_early(took_ns: int, given_ns: float) -> bool:
    """Whether the far end gave up after less than half of the time it was given.

    Then it has a shorter limit of its own, and would give up again, so the request is not sent
    there again at once.
    """
    return took_ns < _EARLY * given_ns

"""Who gives a request up long before its time is over."""

from __future__ import annotations

_EARLY = 0.5


def is_early(took_ns: int, given_ns: float) -> bool:
    """Whether so little of the time that was given had passed.

    Then it was by a limit of his own, and he would again: the request is not sent there at once.
    """
    return took_ns < _EARLY * given_ns

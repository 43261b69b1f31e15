"""How long it is believed that something is too slow, while nothing confirms it.

Whatever is believed to be too slow is not used, and so nothing is learned of it. So after a while
it is tried again, and each time that it still is, after twice as long.
"""

from __future__ import annotations

FIRST_NS, MOST_NS = 10_000_000_000, 600_000_000_000
"""At first, and at most: so what is too slow indeed is hardly ever tried in vain."""


def longer_ns(believed_ns: int) -> int:
    """For how long it is believed after it has been confirmed once more."""
    return min(MOST_NS, 2 * believed_ns)

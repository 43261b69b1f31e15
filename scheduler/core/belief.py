"""How long something stays marked as too slow without being tried again.

Nothing is learned of what is not used. So what seemed too slow is tried again after a while, and
after twice as long each time that it is still too slow (exponential backoff).
"""

from __future__ import annotations

FIRST_NS, MOST_NS = 10_000_000_000, 600_000_000_000
"""The first and the longest interval between tries. What really is too slow is rarely retried."""


def longer_ns(believed_ns: int) -> int:
    """The next interval, after another try has found it still too slow."""
    return min(MOST_NS, 2 * believed_ns)

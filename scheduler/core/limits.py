"""The most that one scheduler holds."""

from __future__ import annotations

from scheduler.core.values import sealed


@sealed(frozen=True, slots=True)
class Limits:
    """The most that one scheduler holds.

    Attributes:
        requests: Accepted requests that have not ended, queued and running.
        bytes: The memory that their tensors take.
        classes: The classes of one model in which requests wait: each makes every decision longer.
        attempts: How often one request is executed before it counts as failed. One more attempt is
            allowed if the last one was in a shared batch, since another item may be to blame.
        story_entries: How many events and commands are kept for `story`.
    """

    requests: int = 10_000
    bytes: int = 1 << 30
    classes: int = 512
    attempts: int = 2
    story_entries: int = 20_000

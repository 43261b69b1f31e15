"""How long a kind of request that arrived lately is expected to stay away."""

from __future__ import annotations

from itertools import accumulate

import pytest

from policies.parts.coming import ENDED, Alike
from scheduler.core.requests import RequestClass
from tests.core.world import MS


def after(*gaps_ms: int, counted: int | None = None) -> tuple[Alike, int]:
    """Arrivals with these gaps, of which so many were counted, and when the last came."""
    alike = Alike(3, 10, frozenset({"cpu:0"}))
    times_ms = list(accumulate(gaps_ms, initial=0))
    for number, at_ms in enumerate(times_ms):
        alike.note(RequestClass("m"), at_ms * MS)
        if number == (len(gaps_ms) if counted is None else counted):
            alike.forget()
            for known_ms in times_ms[: number + 1]:
                alike.count(known_ms * MS, slack_ns=0, worth=1.0, cost_ns=1.0)
            alike.counted()
    return alike, times_ms[-1]


@pytest.mark.parametrize(
    ("age_ms", "quiet_ms"),
    [
        (0, 10),
        (9, 1),  # frames every 10 ms: the next is due
        (10, 990),  # none came 10 ms after the last: the next burst is a second after the last one
        (600, 400),
        (1_000, 0),
        (1_000 * ENDED, 0),
        (1_000 * ENDED + 1, 1_000 * ENDED + 1),  # the bursts have ended
    ],
)
def test_between_bursts_it_is_quiet_until_the_next_is_due(age_ms, quiet_ms):
    alike, last_ms = after(*[10] * 9, 1_000, *[10] * 9)
    assert alike.quiet_ns((last_ms + age_ms) * MS) == quiet_ms * MS


def test_a_pause_counts_before_the_arrivals_are_counted_again():
    alike, last_ms = after(*[10] * 9, 1_000, *[10] * 9, counted=9)
    assert alike.quiet_ns((last_ms + 600) * MS) == 400 * MS


def test_of_what_came_once_nobody_knows_when_it_comes_again():
    alike, last_ms = after()
    assert alike.quiet_ns((last_ms + 70) * MS) == 70 * MS

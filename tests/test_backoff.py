from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler.backoff import Backoff


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_waits_lie_below_a_ceiling_that_doubles_up_to_the_highest(seed: int, failures: int):
    each = Backoff(1_000, 64_000, Random(seed))
    for failure in range(failures):
        ceiling = min(64_000, 1_000 << failure)
        assert ceiling // 10 <= each.next_ns() <= ceiling
    each.reset()
    assert each.next_ns() <= 1_000


def test_the_same_seed_gives_the_same_waits():
    first, second = (Backoff(1_000, 64_000, Random(7)) for _ in range(2))
    assert [first.next_ns() for _ in range(9)] == [second.next_ns() for _ in range(9)]

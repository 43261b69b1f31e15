"""What time is worth under overload."""

from __future__ import annotations

import pytest

from policies.goodput import Goodput
from policies.parts.scarcity import LEAST, MEMORY, Scarcity
from scheduler.core.events import Submitted, TargetUp
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import offer, request, target
from tests.policies.playing import on_time, standard

SHORT, LONG = map(RequestClass, ("short", "long"))
REQUEST = request(1, 90, SHORT)


@pytest.fixture
def policy() -> Goodput:
    """One that knows a short model and one that takes twice as long."""
    policy = Goodput()
    scheduler = Scheduler(policy)
    made = [
        offer(name, base_ms=ms, item_ms=0, sizes=(1,)) for name, ms in (("short", 3), ("long", 6))
    ]
    scheduler.handle(TargetUp(target("cpu:0", *made)), 0)
    scheduler.handle(Submitted((REQUEST,)), 0)
    return policy


@pytest.fixture
def scarcity(policy: Goodput) -> Scarcity:
    """One of which nothing is known to be missed."""
    return Scarcity(policy.admission)


def miss(scarcity: Scarcity, count: int) -> None:
    for number in range(count):
        scarcity.missed(request(number, 90, SHORT))


def test_time_has_no_price_while_hardly_anything_is_missed(scarcity: Scarcity) -> None:
    assert scarcity.saved(SHORT) == (0.0, 0.0)
    miss(scarcity, int(LEAST / MEMORY))
    assert scarcity.saved(SHORT) == (0.0, 0.0)


def test_what_takes_time_is_worth_what_others_missed_that_would_have_had_it(
    scarcity: Scarcity,
) -> None:
    miss(scarcity, 1_000)
    assert scarcity.saved(SHORT) == pytest.approx((1.0, 1.0), rel=0.01)
    assert scarcity.saved(LONG) == pytest.approx((2.0, 1.0), rel=0.01)


def test_it_counts_as_far_as_requests_are_missed(scarcity: Scarcity) -> None:
    miss(scarcity, 1_000)
    for _ in range(89):  # half of what was known is forgotten after so many
        scarcity.came()
    assert scarcity.saved(SHORT) == pytest.approx((1.0, 0.5), rel=0.01)
    for _ in range(1_000):
        scarcity.came()
    assert scarcity.saved(SHORT) == (0.0, 0.0)


def test_another_scheduler_has_prices_of_its_own() -> None:
    policy = Goodput()
    for _ in range(2):
        scheduler = Scheduler(policy)
        scheduler.handle(TargetUp(target("cpu:0", offer("short", base_ms=3, sizes=(1,)))), 0)
        scheduler.handle(Submitted((REQUEST,)), 0)
        assert policy._scarcity.saved(SHORT) == (0.0, 0.0)
        miss(policy._scarcity, 1_000)


@pytest.mark.no_cover
def test_under_overload_batches_are_filled_with_what_could_wait() -> None:
    """A GPU that lives on large batches had sent small ones for what was urgent."""
    assert on_time(standard("steep-batches", requests=4_000), seeds=[2]) > 0.66

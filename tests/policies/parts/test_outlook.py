"""What follows from a view: what targets offer, and how long the way to them takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from policies.parts.outlook import Outlook
from scheduler.core.events import Submitted, TargetUp
from scheduler.core.policy import Decision, View
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, request, target


class Idle:
    """Lets everything wait, and shows its view."""

    def decide(self, view: View) -> Iterable[Decision]:
        self.view = view
        return ()


def test_a_bid_made_before_requests_came_learns_how_long_their_bytes_take():
    idle = Idle()
    scheduler = Scheduler(idle)
    scheduler.handle(TargetUp(replace(target("far"), transfer_ns=(MS, 100.0))), 0)
    scheduler.handle(Submitted((request(1, 500, size_bytes=10_000),)), 0)
    outlook, view = Outlook(0.95), idle.view
    seldom = RequestClass("m", shapes=((7,),))
    outlook.look(view)
    (bid,) = outlook.bids(seldom)
    assert bid.item_ns == 0
    epoch = outlook.epoch
    scheduler.handle(Submitted((request(2, 500, seldom, size_bytes=20_000),)), 2 * MS)
    outlook.look(view)
    (bid,) = outlook.bids(seldom)
    assert bid.item_ns == 2 * MS
    assert outlook.epoch > epoch
    assert outlook.earliest_ns(seldom) == 2 * MS + MS + bid.one_ns()

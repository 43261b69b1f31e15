"""How many batches a server is given at once, whatever becomes of the way there."""

from __future__ import annotations

import math
from itertools import count
from types import SimpleNamespace
from typing import Any

from scheduler.config.cloud import CloudConfig
from scheduler.core.offers import Offer
from scheduler.daemon.cloud.standing import Standing
from scheduler.daemon.ways.breaker import BreakerState
from scheduler.daemon.ways.meter import WayMeter

MS = 1_000_000
S = 1_000 * MS


def test_a_way_that_got_shorter_makes_no_server_seem_full() -> None:
    moments = count(S, S)
    meter = WayMeter(clock_ns=lambda: next(moments))
    ignore: Any = SimpleNamespace(on_changed=lambda *_: None, state=BreakerState.CLOSED)
    till: Any = SimpleNamespace(most=lambda _: math.inf, closed_until_ns=0, too_dear=())
    standing = Standing(CloudConfig(name="far", url="grpc://h:1"), ignore, meter, till, ignore)
    model = SimpleNamespace(shrinking=SimpleNamespace(forms=()))
    offer = Offer("m", "v", "r", {1: (MS,)})
    known: Any = SimpleNamespace(
        size_for=lambda count: count, observe=lambda *_: None, offer=lambda *_: offer, model=model
    )
    standing.latencies = {"m": known}

    def answered(left_ms: float) -> None:
        left_ns = max(1, int(left_ms * MS))
        standing.learn("m", 1, left_ns, left_ns, in_flight=standing.limit.value)

    for _ in range(3):
        meter.round_trip(200 * MS)
    standing.offer_anew()
    answered(50)
    answered(-130)  # 20 ms of the way, 50 of the server, which are less than the 200 of before
    for _ in range(3):
        meter.round_trip(20 * MS)
    standing.offer_anew()
    before = standing.limit.value
    for _ in range(30):
        answered(50)
    assert standing.limit.value > before

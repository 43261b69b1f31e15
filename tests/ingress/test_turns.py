"""What the connections of one party may have taken in a turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from scheduler.ingress.turns import TURN_MESSAGES, Share, Turns


class Reads:
    """The part of a transport that is stopped and started."""

    def __init__(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def test_what_was_read_of_headers_is_paid_for_in_the_next_turns() -> None:
    async def main() -> None:
        share, taken = Share(), list[Any]()
        reads = [Reads(), Reads()]
        first, second = [Turns(cast(Any, each), {"infer"}, taken.extend) for each in reads]
        for turns in (first, second):
            turns.share = share
        first.add([({"t": "infer", "id": 1}, None)], (2 * TURN_MESSAGES + 1) * 1024)
        second.add([({"t": "infer", "id": 2}, None)], 100)
        for _ in range(2):
            assert (taken, [each.paused for each in reads]) == ([], [True, True])
            await asyncio.sleep(0)
        while any(each.paused for each in reads):
            await asyncio.sleep(0)
        assert [header["id"] for header, _ in taken] == [1, 2]


def test_those_that_sent_long_headers_are_not_all_read_again_in_one_turn() -> None:
    async def main() -> None:
        share, taken = Share(), list[Any]()
        reads = [Reads() for _ in range(4)]
        for each in reads:
            turns = Turns(cast(Any, each), {"infer"}, taken.extend)
            turns.share = share
            turns.add([({"t": "infer"}, None)], TURN_MESSAGES * 1024)
        before = 4
        while before:
            await asyncio.sleep(0)
            now = sum(each.paused for each in reads)
            assert now >= before - 1
            before = now

    asyncio.run(main())

    asyncio.run(main())


def test_connections_that_share_go_round() -> None:
    async def main() -> None:
        share, taken = Share(), list[Any]()
        reads = [Reads() for _ in range(3)]
        for number, each in enumerate(reads):
            turns = Turns(cast(Any, each), (), taken.extend)
            turns.share = share
            turns.add([({"t": "status", "id": (number, n)}, None) for n in range(2)], 0)
        while any(each.paused for each in reads):
            await asyncio.sleep(0)
        order = [header["id"] for header, _ in taken]
        assert sorted(order) == [(number, n) for number in range(3) for n in range(2)]
        assert order.index((2, 0)) < order.index((1, 1)), "they go round"

    asyncio.run(main())

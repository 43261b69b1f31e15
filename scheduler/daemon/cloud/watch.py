"""Watching over the way to a server: whether anybody is there, and when to try again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from scheduler.daemon.cloud.endpoint import Endpoint, Fault, RemoteError
from scheduler.daemon.cloud.finding import Finder
from scheduler.daemon.cloud.pace import ProbePace
from scheduler.daemon.cloud.standing import Standing
from scheduler.daemon.ways.breaker import Breaker, BreakerState
from scheduler.daemon.ways.meter import WayMeter

_MARGIN_NS = 3_000_000_000
"""A target whose breaker is open stays closed so much longer than the next probe should take, lest
batches go there because this process was held up."""

_SECOND_LOOK = 2
"""A probe that is late is sent once more, with so many times the patience."""


class Watch:
    """Probes one way as often as its pace says, and brings its breaker back.

    Args:
        endpoint: The server; connected anew where a probe found nobody.
        finder: Probes.
        breaker: Whether anything is sent there.
        meter: What is known of the way.
        pace: How often it is looked at, and how long each look may take.
        standing: Told what is found.
        under_way: How many bytes are there, or on their way.
        on_silent: Called with the reason where probes are not answered while the breaker is closed.

    Attributes:
        heard_ns: When the server last said anything.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        finder: Finder,
        breaker: Breaker,
        meter: WayMeter,
        pace: ProbePace,
        standing: Standing,
        under_way: Callable[[], int],
        on_silent: Callable[[str], None],
    ) -> None:
        """Looks at nothing before `keep`."""
        self.heard_ns = 0
        self._endpoint = endpoint
        self._finder = finder
        self._breaker = breaker
        self._meter = meter
        self._pace = pace
        self._standing = standing
        self._under_way = under_way
        self._on_silent = on_silent
        self._news = asyncio.Event()
        self._suspect = self._outdated = False
        self._felt_ns = self._open_ns = 0

    async def keep(self) -> None:
        """Watches until the models have to be found anew; see `outdate`."""
        while not self._outdated:
            if self.is_open:
                await asyncio.sleep(self._open_ns / 1e9)
                await self._try_again()
                continue
            # Not `wait_for`, which before Python 3.12 may swallow that it is cancelled.
            every_s = self._pace.every_s()
            timer = asyncio.get_running_loop().call_later(every_s, self._news.set)
            await self._news.wait()
            timer.cancel()
            self._news.clear()
            is_due = time.monotonic_ns() - self._felt_ns >= every_s * 1e9
            if not self.is_open and (self._suspect or is_due):
                self._suspect = False
                await self._probe()

    @property
    def is_open(self) -> bool:
        """Whether the breaker is, so that nothing is sent there."""
        return self._breaker.state is BreakerState.OPEN

    # -- what is heard elsewhere

    def begin(self) -> None:
        """The server is there, with the models that are known from now on."""
        self._outdated = self._suspect = False
        self.heard()

    def heard(self) -> None:
        """The server has said something."""
        self.heard_ns = time.monotonic_ns()

    def felt(self) -> None:
        """What it has said tells what the way is like, as a probe would have."""
        self.heard_ns = self._felt_ns = time.monotonic_ns()

    def suspect(self) -> None:
        """It should have said something by now: is anybody there?"""
        self._suspect = True
        self._news.set()

    def outdate(self) -> None:
        """What is known of its models is not true any more."""
        self._outdated = True
        self._news.set()

    def opened(self, open_ns: int) -> None:
        """The breaker has opened, for so long: nothing is sent there until it was tried again."""
        self._open_ns = open_ns
        self._news.set()
        self._close_while_open()

    # -- probes

    async def _probe(self) -> None:
        error = await self._look(self._patience_s())
        if error is not None and error.fault is Fault.SILENT and not self.is_open:
            # It may have met a busy process. Until that is known nothing new goes there, and
            # nothing that is there is taken back.
            patience_s = _SECOND_LOOK * self._patience_s()
            self._standing.doubt_for(int(patience_s * 1e9))
            error = await self._look(patience_s)
            if error is None:
                self._standing.doubt_for(0)
        if error is not None and not self.is_open:
            self._on_silent(f"no answer to a probe: {error}")

    async def _look(self, patience_s: float) -> RemoteError | None:
        alone = not self._meter.is_bulk(self._under_way())
        try:
            await self._finder.probe(patience_s, alone)
        except RemoteError as error:
            return error
        self.felt()
        self._standing.tell_changes()
        return None

    def _patience_s(self) -> float:
        # On one connection it comes after all that is being sent, whose time is no round trip.
        return self._pace.patience_s() + self._meter.byte_ns * self._under_way() / 1e9

    async def _try_again(self) -> None:
        try:
            await self._finder.probe(self._pace.retry_s())
        except RemoteError as error:
            self._endpoint.reconnect()
            self._open_ns = self._breaker.trip(str(error))
            self._close_while_open()
            return
        self.heard()
        self._breaker.half_open()
        self._standing.allow_sizes()
        self._standing.open()

    def _close_while_open(self) -> None:
        self._standing.close_for(self._open_ns + int(self._pace.retry_s() * 1e9) + _MARGIN_NS)

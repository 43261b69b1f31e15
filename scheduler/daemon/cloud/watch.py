"""Watches the way to a server: when its breaker opens, and when to try again."""

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
"""A target whose breaker is open stays closed this much longer than the next probe should take, so
that no batch goes there just because this process was held up."""

_SECOND_LOOK = 2
"""A probe that is late is repeated once, with this many times the timeout."""


class Watch:
    """Probes one way as often as its pace says, and opens and half-opens its breaker.

    Args:
        endpoint: The server; reconnected when the breaker opens, and when a probe fails after that.
        finder: Sends the probes.
        breaker: Whether anything is sent there.
        meter: The measurements of the way.
        pace: The interval between probes, and their timeouts.
        standing: Told of the results.
        under_way: Returns the number of bytes in flight.
        on_open: Called with the reason when the breaker has opened: the batches in flight are lost,
            or would be too late.

    Attributes:
        heard_ns: When the server last answered anything.
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
        on_open: Callable[[str], None],
    ) -> None:
        """Idle until `keep` runs."""
        self.heard_ns = 0
        self._endpoint = endpoint
        self._finder = finder
        self._breaker = breaker
        self._meter = meter
        self._pace = pace
        self._standing = standing
        self._under_way = under_way
        self._on_open = on_open
        self._news = asyncio.Event()
        self._suspect = self._outdated = False
        self._felt_ns = self._open_ns = 0

    async def keep(self) -> None:
        """Watches until the models must be found again; see `outdate`."""
        while not self._outdated:
            if self.is_open:
                await asyncio.sleep(self._open_ns / 1e9)
                await self._try_again()
                continue
            # Not `wait_for`, which before Python 3.12 may swallow a cancellation.
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
        """Whether the breaker is open, so that no batch is sent."""
        return self._breaker.state is BreakerState.OPEN

    # -- events from the link

    def begin(self) -> None:
        """The server is there, and its models are known."""
        self._outdated = self._suspect = False
        self.heard()

    def heard(self) -> None:
        """The server has answered something."""
        self.heard_ns = time.monotonic_ns()

    def felt(self) -> None:
        """An answer has measured the way, as a probe would have."""
        self.heard_ns = self._felt_ns = time.monotonic_ns()

    def suspect(self) -> None:
        """An answer is overdue: probes at once."""
        self._suspect = True
        self._news.set()

    def outdate(self) -> None:
        """What is known of the server's models is out of date."""
        self._outdated = True
        self._news.set()

    def failed(self, reason: str) -> None:
        """A batch has failed; several in a row open the breaker."""
        open_ns = self._breaker.failed(reason)
        if open_ns is not None:
            self._opened(open_ns, reason)

    def trip(self, reason: str) -> None:
        """Opens the breaker, unless it is open already."""
        if not self.is_open:
            self._opened(self._breaker.trip(reason), reason)

    def _opened(self, open_ns: int, reason: str) -> None:
        """Sends nothing for this long, and then nothing until a probe succeeds."""
        self._open_ns = open_ns
        self._news.set()
        # Close the target first, or the batches in flight would be sent there again.
        self._close_while_open()
        self._endpoint.reconnect()
        self._on_open(reason)

    # -- probes

    async def _probe(self) -> None:
        error = await self._look(self._patience_s())
        if error is not None and error.fault is Fault.SILENT and not self.is_open:
            # The process may just be busy. Until that is known, no new batch is sent, and none in
            # flight is withdrawn.
            patience_s = _SECOND_LOOK * self._patience_s()
            self._standing.doubt_for(int(patience_s * 1e9))
            error = await self._look(patience_s)
            if error is None:
                self._standing.doubt_for(0)
        if error is not None:
            self.trip(f"no answer to a probe: {error}")

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
        # On a single connection a probe queues behind the bytes in flight; allow for their time.
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

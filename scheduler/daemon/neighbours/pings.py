"""Measures the way to another box with pings."""

from __future__ import annotations

from collections.abc import Callable

from scheduler import wire
from scheduler.client.connection import Connection
from scheduler.daemon.ways.meter import BULK_BYTES, WayMeter

_SMALL, _LARGE = -1, -3
"""The ids of pings; negative, because they are not requests."""

FIRST = range(2, 5)
"""The small pings of a connection that are followed by a large one. Thus the first large requests
are spared a way that they can't cross in time. By then the round trip is known, and of several, one
is not slow by chance."""


class Pings:
    """At most one small ping in flight, for the round trip, and one large, for the bandwidth.

    Args:
        meter: Records their times.
        clock_ns: The monotonic clock.
    """

    def __init__(self, meter: WayMeter, clock_ns: Callable[[], int]) -> None:
        """No ping is in flight."""
        self._meter = meter
        self._clock_ns = clock_ns
        self._small_ns = 0
        self._large: tuple[int, int] | None = None
        self._count = 0

    def begin(self) -> None:
        """Starts on a new connection: pings on the last one will never be answered."""
        self._small_ns = 0
        self._large = None
        self._count = 0

    @property
    def under_way(self) -> int:
        """The bytes in flight."""
        return self._large[0] if self._large else 0

    def small(self, connection: Connection, under_way: int) -> None:
        """Sends a small ping, unless it would queue behind `under_way` bytes and measure those.

        Some of the first are followed by a large one.
        """
        if not self._small_ns and not self._meter.is_bulk(under_way):
            self._small_ns = self._clock_ns()
            connection.send(wire.encode({"t": "ping", "id": _SMALL}))
            if self._count in FIRST:
                self.large(connection, BULK_BYTES)
            self._count += 1

    def large(self, connection: Connection, size: int) -> None:
        """Sends a large ping of at most `size` bytes, limited by what the box and the way take."""
        if not self._large:
            size = self._meter.trial_bytes(min(size, connection.limits.body_bytes))
            self._large = size, self._clock_ns()
            connection.send_soon(wire.encode({"t": "ping", "id": _LARGE}, [bytes(size)]))

    def answered(self, ping_id: int) -> None:
        """Records the answer to a ping; ignores other ids."""
        now_ns = self._clock_ns()
        if ping_id == _SMALL and self._small_ns:
            self._meter.round_trip(now_ns - self._small_ns)
            self._small_ns = 0
        elif ping_id == _LARGE and self._large:
            size, sent_ns = self._large
            self._meter.carried(size, 0, now_ns - sent_ns, sent_ns)
            self._large = None

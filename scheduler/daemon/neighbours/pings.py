"""Measuring the way to another box by messages that ask for nothing but an answer."""

from __future__ import annotations

from collections.abc import Callable

from scheduler import wire
from scheduler.client.connection import Connection
from scheduler.daemon.ways.meter import WayMeter

_SMALL, _LARGE = -1, -3
"""The ids of pings: they are no requests."""


class Pings:
    """One small one at a time tells the round trip, and one large one the bandwidth.

    Args:
        meter: Told what they took.
        clock_ns: The monotonic clock.
    """

    def __init__(self, meter: WayMeter, clock_ns: Callable[[], int]) -> None:
        """None is under way."""
        self._meter = meter
        self._clock_ns = clock_ns
        self._small_ns = 0
        self._large: tuple[int, int] | None = None

    def begin(self) -> None:
        """The connection is another one: what went over the last is never answered."""
        self._small_ns = 0
        self._large = None

    @property
    def under_way(self) -> int:
        """The bytes that were sent and not answered."""
        return self._large[0] if self._large else 0

    def small(self, connection: Connection, under_way: int) -> None:
        """Sends a small one, unless it would wait behind so many bytes and measure their time."""
        if not self._small_ns and not self._meter.is_bulk(under_way):
            self._small_ns = self._clock_ns()
            connection.send(wire.encode({"t": "ping", "id": _SMALL}))

    def large(self, connection: Connection, size: int) -> None:
        """Sends one of up to so many bytes: what the box takes, and the way carries soon."""
        if not self._large:
            size = self._meter.trial_bytes(min(size, connection.limits.body_bytes))
            self._large = size, self._clock_ns()
            connection.send_soon(wire.encode({"t": "ping", "id": _LARGE}, [bytes(size)]))

    def answered(self, ping_id: int) -> None:
        """The answer to one came, or to what is none."""
        now_ns = self._clock_ns()
        if ping_id == _SMALL and self._small_ns:
            self._meter.round_trip(now_ns - self._small_ns)
            self._small_ns = 0
        elif ping_id == _LARGE and self._large:
            size, sent_ns = self._large
            self._meter.carried(size, 0, now_ns - sent_ns, sent_ns)
            self._large = None

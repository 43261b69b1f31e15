"""A TCP relay that passes bytes on as a link would: later, slower, and sometimes not at all."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from replay.links.crossing import Crossing
from replay.links.one_way import Carrier, OneWay
from replay.links.precise_timer import PreciseTimer
from scheduler.address import Address, no_listening, parse_address

Direction = Literal["up", "down", "both"]

_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Counts since the emulator began.

    Attributes:
        up_bytes: Bytes delivered to the destination.
        down_bytes: Bytes delivered to callers.
        open: Connections that are open now.
        connections: All connections so far.
        refused: Connections that the destination did not accept.
        stalls: Losses, each of which stalled one connection.
    """

    up_bytes: int
    down_bytes: int
    open: int
    connections: int
    refused: int
    stalls: int


class LinkEmulator:
    """Listens at one address, and carries each connection to another one over an emulated link.

    All connections share the link's rate. Bytes arrive unchanged and in order, and TLS passes
    through. A connection is accepted at once, as the kernel does it, but opens at the destination
    after the one-way delay, and carries the caller's bytes after a round trip. Use it on
    a running loop, with `async with`; it adds little to the delays while that loop is not busy.

    Args:
        listen: Where to listen: `HOST:PORT` (0 takes a free port), `tcp://HOST:PORT` or
            `unix:///PATH`.
        to: The destination, in the same forms.
        up: The direction from the callers to the destination.
        down: The direction back.
        outages: When nothing gets through in either direction: (start, length) in seconds since
            the emulator began.
        seed: The seed of jitter and losses. With the same seed the n-th connection has the same
            ones, as long as it sends the same pieces.

    Raises:
        AddressError: An address is malformed.
        ValueError: An outage is malformed, or an address is a TLS one.
        OSError: From `async with`: it can't listen there.
    """

    def __init__(
        self,
        listen: str,
        to: str,
        *,
        up: OneWay | None = None,
        down: OneWay | None = None,
        outages: Sequence[tuple[float, float]] = (),
        seed: int = 0,
    ) -> None:
        """Stores the settings; `async with` starts it."""
        self._listen = _parsed(listen)
        self._to = _parsed(to)
        if self._to.port == 0:
            raise ValueError(f"{to!r}: the destination needs a port, 1 or more")
        self._outages = _in_order(outages)
        self._seed = seed
        now_ns = time.monotonic_ns()
        self._up = Carrier(up or OneWay(), now_ns)
        self._down = Carrier(down or OneWay(), now_ns)
        self._open: set[Crossing] = set()
        self._connections = self._refused = 0
        self._resets = False
        self._tasks: set[asyncio.Task[None]] = set()

    # -- start and stop

    async def __aenter__(self) -> LinkEmulator:
        """Starts to listen."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._timer = PreciseTimer()
        try:
            self._server = await self._serve()
        except BaseException:
            self._timer.close()
            raise
        if self._outages:
            self._spawn(self._play_outages())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Resets every connection, and stops listening."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._open:
            for crossing in list(self._open):
                crossing.break_off()
            await asyncio.sleep(0)
        self._timer.close()
        if self._listen.path is not None:
            Path(self._listen.path).unlink(missing_ok=True)

    @property
    def address(self) -> str:
        """Where it listens, with the actual port: `tcp://HOST:PORT` or `unix:///PATH`."""
        if self._listen.scheme == "unix":
            return str(self._listen)
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(Address("tcp", host=host, port=port))

    async def _serve(self) -> asyncio.Server:
        loop, where = asyncio.get_running_loop(), self._listen
        try:
            if where.scheme == "unix":
                return await loop.create_unix_server(self._taken, where.path, backlog=_BACKLOG)
            return await loop.create_server(
                self._taken, str(where.host), where.port or 0, backlog=_BACKLOG
            )
        except OSError as error:
            raise no_listening(where, error) from None

    # -- the link

    @property
    def up(self) -> OneWay:
        """The direction from the callers; a new value applies to what is sent from then on."""
        return self._up.way

    @up.setter
    def up(self, way: OneWay) -> None:
        self._up.way = way

    @property
    def down(self) -> OneWay:
        """The direction back; a new value applies to what is sent from then on."""
        return self._down.way

    @down.setter
    def down(self, way: OneWay) -> None:
        self._down.way = way

    def outage(self, direction: Direction = "both", *, reset: bool = False) -> None:
        """Lets nothing through from now on: existing and new connections hang.

        Args:
            direction: One direction alone, or both.
            reset: Reset all connections, and each new one, as a box on the way does that has lost
                its connection table.
        """
        self._resets = reset
        now_ns = time.monotonic_ns()
        for carrier in self._carriers(direction):
            carrier.cut(now_ns)
        self._whole.clear()
        for crossing in list(self._open):
            if reset:
                crossing.break_off()
            crossing.up.pace()
            crossing.down.pace()

    def restore(self, direction: Direction = "both") -> None:
        """Ends an outage. Bytes on their way continue from where they were, as does the queue.

        TCP itself would send again only when its retransmission timeout, which doubles, expires.
        """
        self._resets = False
        now_ns = time.monotonic_ns()
        shifts = {id(carrier): carrier.restore(now_ns) for carrier in self._carriers(direction)}
        if not self.is_out:
            self._whole.set()
        for crossing in list(self._open):
            for stream in (crossing.up, crossing.down):
                stream.later(shifts.get(id(stream.carrier), 0))

    @property
    def is_out(self) -> bool:
        """Whether nothing gets through in at least one direction."""
        return self._up.cut_ns is not None or self._down.cut_ns is not None

    @property
    def rtt_ms(self) -> float:
        """The round trip of a small message now, without jitter and queueing."""
        now_ns = time.monotonic_ns()
        return (self._up.delay_ns(now_ns) + self._down.delay_ns(now_ns)) / 1e6

    def counters(self) -> LinkCounters:
        """The counts so far."""
        return LinkCounters(
            up_bytes=self._up.passed_bytes,
            down_bytes=self._down.passed_bytes,
            open=len(self._open),
            connections=self._connections,
            refused=self._refused,
            stalls=self._up.stalls + self._down.stalls,
        )

    def _carriers(self, direction: Direction) -> list[Carrier]:
        known = {"up": [self._up], "down": [self._down], "both": [self._up, self._down]}
        if direction not in known:
            raise ValueError(f"a direction is up, down or both, not {direction!r}")
        return known[direction]

    # -- connections

    def _taken(self) -> asyncio.BaseProtocol:
        seed = f"{self._seed}/{self._connections}"
        self._connections += 1
        crossing = Crossing(
            self._up, self._down, seed, self._timer, self._begun, self._open.discard
        )
        return crossing.near

    def _begun(self, crossing: Crossing) -> None:
        self._open.add(crossing)
        if self._resets:
            crossing.break_off()
        else:
            self._spawn(self._dial(crossing))

    async def _dial(self, crossing: Crossing) -> None:
        loop, to = asyncio.get_running_loop(), self._to
        opens = asyncio.Event()
        self._timer.call_at(crossing.dial_ns, opens.set)
        await opens.wait()
        await self._whole.wait()
        try:
            if to.scheme == "unix":
                await loop.create_unix_connection(lambda: crossing.far, to.path)
            else:
                await loop.create_connection(lambda: crossing.far, str(to.host), to.port or 0)
        except OSError:
            self._refused += 1
            crossing.break_off()
        if crossing not in self._open:  # the caller has gone meanwhile
            crossing.break_off()

    async def _play_outages(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for from_s, for_s in self._outages:
            await asyncio.sleep(began + from_s - loop.time())
            self.outage()
            await asyncio.sleep(began + from_s + for_s - loop.time())
            self.restore()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _parsed(place: str) -> Address:
    address = parse_address(place if "://" in place else f"tcp://{place}")
    if address.scheme == "tls":
        raise ValueError(
            f"{place!r}: TLS passes as it is, so give {str(address).replace('tls', 'tcp', 1)}"
        )
    return address


def _in_order(outages: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ordered = sorted(outages)
    for from_s, for_s in ordered:
        if not (math.isfinite(from_s + for_s) and from_s >= 0 and for_s > 0):
            raise ValueError(
                "an outage begins at 0 s or later and lasts more than 0 s, "
                f"not {from_s:g}+{for_s:g}"
            )
    for (from_s, for_s), (then_s, _) in pairwise(ordered):
        if from_s + for_s > then_s:
            raise ValueError(
                f"the outage {from_s:g}+{for_s:g} isn't over at {then_s:g} s, "
                "when the next one begins"
            )
    return ordered

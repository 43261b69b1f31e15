"""A TCP relay that lets bytes through as a link would: later, slower, and sometimes not at all."""

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
    """What has passed since the emulator began.

    Attributes:
        up_bytes: Delivered to where the link leads.
        down_bytes: Delivered to those who connected.
        open: Connections that are open now.
        connections: All that there were.
        refused: Those that nobody took at the other end.
        stalls: Losses, each a stall of one connection.
    """

    up_bytes: int
    down_bytes: int
    open: int
    connections: int
    refused: int
    stalls: int


class LinkEmulator:
    """Listens at one address, and carries each connection to another one over an emulated link.

    All connections share the link's rate. What is sent arrives unchanged and in order, and TLS
    passes as it is. A connection is taken at once, as the kernel does it, but opens at the other
    end after the way there, and carries the caller's bytes after a round trip. Use it on a running
    loop, with `async with`; what it adds to the delays is small while that loop is not busy.

    Args:
        listen: Where to listen: `HOST:PORT` (0 takes a free one), `tcp://HOST:PORT` or
            `unix:///PATH`.
        to: Where connections lead, in the same forms.
        up: From those who connect to where it leads.
        down: The way back.
        outages: When nothing gets through, in both directions: (from, for) in seconds since it
            began.
        seed: Of jitter and losses: the n-th connection has the same luck with the same seed, as
            far as it sends the same pieces.

    Raises:
        AddressError: An address is none.
        ValueError: An outage is none, or an address is one of TLS.
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
        """Takes note; `async with` begins."""
        self._listen = _parsed(listen)
        self._to = _parsed(to)
        if self._to.port == 0:
            raise ValueError(f"{to!r}: connections lead to a port from 1 on")
        self._outages = _in_order(outages)
        self._seed = seed
        now_ns = time.monotonic_ns()
        self._up = Carrier(up or OneWay(), now_ns)
        self._down = Carrier(down or OneWay(), now_ns)
        self._open: set[Crossing] = set()
        self._connections = self._refused = 0
        self._resets = False
        self._tasks: set[asyncio.Task[None]] = set()

    # -- its life

    async def __aenter__(self) -> LinkEmulator:
        """Listens."""
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
        """Breaks every connection off, and listens no more."""
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
        """Where it listens, with the port that it took: `tcp://HOST:PORT` or `unix:///PATH`."""
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

    # -- what it does to what passes

    @property
    def up(self) -> OneWay:
        """From those who connect to where it leads; a new value counts for what is sent then."""
        return self._up.way

    @up.setter
    def up(self, way: OneWay) -> None:
        self._up.way = way

    @property
    def down(self) -> OneWay:
        """The way back; a new value counts for what is sent then."""
        return self._down.way

    @down.setter
    def down(self, way: OneWay) -> None:
        self._down.way = way

    def outage(self, direction: Direction = "both", *, reset: bool = False) -> None:
        """Lets nothing through from now on: connections hang, and new ones too.

        Args:
            direction: Or in one direction alone.
            reset: Break off all connections, and each new one; that is what a box in between does
                that has lost its memory of them.
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
        """Ends an outage. What was on its way goes on from where it was, as does the queue.

        TCP itself would send again only when its timeout, which doubles, next ends.
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
        """Whether nothing gets through in some direction."""
        return self._up.cut_ns is not None or self._down.cut_ns is not None

    @property
    def rtt_ms(self) -> float:
        """The round trip of something small now, without jitter and queue."""
        now_ns = time.monotonic_ns()
        return (self._up.delay_ns(now_ns) + self._down.delay_ns(now_ns)) / 1e6

    def counters(self) -> LinkCounters:
        """What has passed so far."""
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
        raise ValueError(f"{place!r}: TLS passes as it is: {str(address).replace('tls', 'tcp', 1)}")
    return address


def _in_order(outages: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ordered = sorted(outages)
    for from_s, for_s in ordered:
        if not (math.isfinite(from_s + for_s) and from_s >= 0 and for_s > 0):
            raise ValueError(
                f"an outage begins at 0 s or later and lasts, not {from_s:g}+{for_s:g}"
            )
    for (from_s, for_s), (then_s, _) in pairwise(ordered):
        if from_s + for_s > then_s:
            raise ValueError(f"the outage {from_s:g}+{for_s:g} isn't over at {then_s:g} s")
    return ordered

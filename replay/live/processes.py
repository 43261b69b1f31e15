"""A live replay from several processes: each sends its share, and their endings are merged in time.

The parent deals the requests out a little ahead of time, and merges the endings. Both directions
are bounded: a process asks for more requests when it has few left, and an ending is passed on once
no process can report an earlier one.
"""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import pickle
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from replay.live.endings import PROGRESS_S, LiveEnding, LiveTally, OnEnd, OnProgress
from replay.live.inputs import MakeInputs
from replay.live.player import Player, run_precisely
from replay.simulator import Arrival
from scheduler import AsyncClient, LaxityError

HAND = 32
"""The number of requests or endings per message; unpacking takes a fraction of a millisecond."""

FEW = 8 * HAND
"""A process with fewer requests left than this asks for more."""

LEAD_NS = 100_000_000
REPORT_S = 0.1
READY_S = 60.0

Numbered = tuple[int, Arrival]


class LiveError(LaxityError):
    """A process of a live replay failed."""


# -- the parent


class Crew:
    """The processes that send requests.

    Args:
        url: As in `play_live`, like the rest.
        make_inputs: Makes the inputs of requests.
        processes: Number of processes.
        tally: The counts to add to.
    """

    def __init__(
        self, url: str | None, make_inputs: MakeInputs, processes: int, tally: LiveTally
    ) -> None:
        """Starts no process yet."""
        self._context = multiprocessing.get_context("spawn")
        self._given = url, make_inputs
        self._count = processes
        self._tally = tally
        self._hands: list[deque[Numbered]] = [deque() for _ in range(processes)]
        self._marks = [0] * processes
        self._sent = [0] * processes
        self._ends: list[tuple[int, int, LiveEnding]] = []

    def play(self, arrivals: Iterable[Arrival], on_end: OnEnd, progress: OnProgress) -> None:
        """Plays all requests; see `play_live`."""
        self._source = enumerate(arrivals)
        self._on_end = on_end
        links: list[Connection[Any, Any]] = []
        members = []
        try:
            for _ in range(self._count):
                here, there = self._context.Pipe()
                member = self._context.Process(target=_work, args=(there, *self._given))
                member.start()
                there.close()
                links.append(here)
                members.append(member)
            self._start(links)
            self._merge(links, progress)
            for member in members:
                member.join()
        finally:
            for member in members:
                member.kill()
                member.join()
            for link in links:
                link.close()

    def _start(self, links: list[Connection[Any, Any]]) -> None:
        """Waits until all processes are connected, so that none starts late."""
        for number, link in enumerate(links):
            if not link.poll(READY_S):
                raise LiveError(f"process {number} was not ready after {READY_S:g} s")
            self._hear(number, link)
        for number, link in enumerate(links):
            for _ in range(2 * FEW // HAND):
                self._deal(number, link)
        start_ns = time.monotonic_ns() + LEAD_NS
        for link in links:
            link.send(("start", start_ns))

    def _merge(self, links: list[Connection[Any, Any]], progress: OnProgress) -> None:
        numbers = {id(link): number for number, link in enumerate(links)}
        open_links: list[Any] = list(links)
        told_s = time.monotonic()
        while open_links:
            for link in wait(open_links, PROGRESS_S):
                if not self._hear(numbers[id(link)], link):
                    open_links.remove(link)
            self._pass_on()
            if time.monotonic() - told_s >= PROGRESS_S:
                told_s = time.monotonic()
                progress(self._tally)
        progress(self._tally)

    def _hear(self, number: int, link: Any) -> bool:
        """Handles one message; returns False for the last one of a process."""
        try:
            kind, told = link.recv()
        except (EOFError, OSError):
            raise LiveError(f"process {number} of the load generator has died") from None
        if kind == "failed":
            raise pickle.loads(told) if isinstance(told, bytes) else LiveError(str(told))
        if kind == "more":
            self._deal(number, link)
        if kind == "ends":
            self._marks[number], self._sent[number], ends = told
            for ending in ends:
                heapq.heappush(self._ends, (ending.at_ns, ending.number, ending))
            self._tally.sent = sum(self._sent)
        if kind == "done":
            self._marks[number] = sys.maxsize
        return bool(kind != "done")

    def _deal(self, number: int, link: Any) -> None:
        """Sends a process its next requests; fewer than `HAND` are its last."""
        hand = self._hands[number]
        if len(hand) < HAND:
            for each in islice(self._source, self._count * HAND):
                self._hands[each[0] % self._count].append(each)
        link.send(("hand", [hand.popleft() for _ in range(min(HAND, len(hand)))]))

    def _pass_on(self) -> None:
        """Passes on the endings that no process can precede any more."""
        mark_ns = min(self._marks)
        while self._ends and self._ends[0][0] <= mark_ns:
            ending = heapq.heappop(self._ends)[2]
            self._tally.add(ending)
            self._on_end(ending)


# -- a process


def _work(link: Any, url: str | None, make_inputs: MakeInputs) -> None:
    sys.setswitchinterval(0.0005)
    try:
        run_precisely(_Member(link).play(url, make_inputs))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent is gone or is stopping
    except Exception as error:
        with suppress(OSError):
            try:
                link.send(("failed", pickle.dumps(error)))
            except (pickle.PicklingError, TypeError):
                link.send(("failed", repr(error)))


class _Member:
    """One process that sends requests."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._hand: deque[Numbered] = deque()
        self._asked = False
        self._over = False
        self._some = asyncio.Event()
        self._ends: list[LiveEnding] = []
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def play(self, url: str | None, make_inputs: MakeInputs) -> None:
        loop = asyncio.get_running_loop()
        self._start: asyncio.Future[int] = loop.create_future()
        # Sending may have to wait for the parent, which must not delay the schedule.
        sender = threading.Thread(target=self._send_all, name="ends")
        sender.start()
        reporting: asyncio.Future[None] | None = None
        try:
            async with AsyncClient(url) as client:
                inputs = make_inputs(await client.models())
                self._outbox.put(("ready", None))
                loop.add_reader(self._link.fileno(), self._hear)
                self._player = Player(client, inputs, self._note, await self._start)
                reporting = asyncio.ensure_future(self._report_often())
                await self._player.play(self._requests())
                self._report()
                self._outbox.put(("done", None))
        finally:
            loop.remove_reader(self._link.fileno())
            if reporting is not None:
                reporting.cancel()
            self._outbox.put(None)
            sender.join()

    async def _requests(self) -> AsyncIterator[Numbered]:
        while True:
            while self._hand:
                yield self._hand.popleft()
                if len(self._hand) < FEW and not self._asked and not self._over:
                    self._asked = True
                    self._outbox.put(("more", None))
            if self._over:
                return
            self._some.clear()
            await self._some.wait()

    def _hear(self) -> None:
        try:
            kind, told = self._link.recv()
        except (EOFError, OSError):
            self._over = True
            self._some.set()
            if not self._start.done():
                self._start.set_exception(EOFError())
            return
        if kind == "start":
            self._start.set_result(told)
        else:
            self._asked = False
            self._over = len(told) < HAND
            self._hand.extend(told)
            self._some.set()

    def _note(self, ending: LiveEnding) -> None:
        self._ends.append(ending)
        if len(self._ends) >= HAND:
            self._report()

    def _report(self) -> None:
        ends, self._ends = self._ends, []
        self._outbox.put(("ends", (self._player.now_ns(), self._player.sent, ends)))

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._report()

    def _send_all(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._link.send(message)
            except OSError:
                return

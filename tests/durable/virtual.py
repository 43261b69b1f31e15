"""The real driver, policies, feeder and database on a loop whose time jumps to the next timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.durable.clock import TaskClock
from scheduler.durable.database import FILE, Database
from scheduler.durable.feeder import Feeder
from scheduler.durable.lanes import waiting_from
from scheduler.durable.records import Asked, Bounds, Content, NewTask
from scheduler.errors import Overloaded, Unavailable
from scheduler.policy_loading import NamedPolicy
from scheduler.wire import body_bytes
from tests.core.world import MS, offer

WALL_MS = 1_700_000_000_000
SPECS: list[list[Any]] = [["x", "uint8", [4]]]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never waits: when nothing is to be done, it is the time of the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.databases: list[Database] = []

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        mine = cast(Any, self)
        live = [handle for handle in mine._scheduled if not handle.cancelled()]
        if not mine._ready and live:
            self.now_s = max(self.now_s, min(handle.when() for handle in live))
        cast(Any, super())._run_once()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a scene on a loop of its own."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()
        for database in loop.databases:
            database.close()


class Device:
    """A worker that runs its batches one after the other, for as long as its offer says.

    Attributes:
        runs: What it holds; the first one runs.
        batches: Model and size of each that it began.
        broken: Whether what ends now has failed.
        slowness: How many times as long as its offer says a batch takes that begins now.
    """

    def __init__(self, world: World, target_id: str, offers: Sequence[Offer]) -> None:
        self.world = world
        self.target_id = target_id
        self.offers = {(o.model, o.variant): o for o in offers}
        self.runs: list[Dispatch] = []
        self.batches: list[tuple[str, int]] = []
        self.broken = False
        self.slowness = 1

    async def keep_connected(self) -> None:
        """Is there."""

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        self.runs.append(dispatch)
        if len(self.runs) == 1:
            self._begin()

    def cancel(self, run_id: int) -> None:
        """Skips nothing: what is cancelled runs for nothing, as it may on a real device."""

    def close(self) -> None:
        """Has no connection."""

    def _begin(self) -> None:
        head = self.runs[0]
        size = len(head.request_ids)
        self.batches.append((head.model, size))
        offer = self.offers[head.model, head.variant]
        samples = offer.latency_ns[offer.size_for(size)]
        took_ns = self.slowness * samples[len(samples) // 2]
        self.world.loop.call_later(took_ns / 1e9, self._done, head, took_ns)

    def _done(self, head: Dispatch, took_ns: int) -> None:
        if head not in self.runs:
            return  # lost meanwhile
        self.runs.remove(head)
        if self.runs:
            self._begin()
        body = memoryview(b"out!")
        each: Any = "it broke" if self.broken else ([["y", "uint8", [4]]], body)
        self.world.driver.on_done(head.run_id, [each] * len(head.request_ids), took_ns)

    def lose(self) -> None:
        """The worker's process is gone."""
        self.runs.clear()
        self.world.driver.on_lost(self.target_id, "it was killed")


class World:
    """A box in virtual time.

    Attributes:
        outcomes: How the requests ended, in order.
        lives: The tasks of which each feeder heard that their end is on disk, in order.
        full: Whether the disk takes nothing.
        broken: Whether nothing can be read from the disk.
    """

    def __init__(self, folder: Path, policy: str = "goodput", **options: Any) -> None:
        self.loop = cast(VirtualLoop, asyncio.get_running_loop())
        self.database = Database(folder / FILE, Bounds())
        self.loop.databases.append(self.database)
        # The disk's own time is none of this one's.
        self.database._sql.execute("PRAGMA synchronous = OFF")
        self.clock = TaskClock(lambda: WALL_MS * MS + self.now_ns(), self.now_ns)
        self.driver = Driver(NamedPolicy(policy, options), clock_ns=self.now_ns)
        self.lives: list[list[int]] = []
        self.outcomes: list[Outcome] = []
        self.full = self.broken = False
        self.begin()

    def begin(self) -> None:
        """A feeder that finds what is on disk, as after a start."""
        self.lives.append([])
        heard = self.lives[-1].append
        self.feeder = Feeder(self.driver, self, self.clock, lambda model: True, heard)
        begun_ns = self.clock.boot_ns() - self.clock.now_ms() * MS  # when the task clock was 0
        kept = self.database.waiting()
        self.feeder.add([waiting_from(k, begun_ns + k.deadline_ms * MS) for k in kept])

    @property
    def ended(self) -> list[int]:
        """The tasks whose end is on disk."""
        return [seq for life in self.lives for seq in life]

    def now_ns(self) -> int:
        return 10**12 + round(self.loop.time() * 1e9)

    def write(self, op: Any, then: Any = lambda found: None) -> None:
        found = Overloaded("disk full") if self.full else self.database.commit([op])[0]
        self.loop.call_soon(then, found)

    def read(self, op: Any, then: Any) -> None:
        found = Unavailable("disk I/O error") if self.broken else self.database.look([op])[0]
        self.loop.call_soon(then, found)

    def device(self, target_id: str = "cpu:0", *offers: Offer) -> Device:
        """One more device, which is up."""
        made = Device(self, target_id, offers or (offer(),))
        self.driver.add_target(target_id, made)
        for each in made.offers.values():
            self.driver.on_offer(target_id, each)
        return made

    def task(self, number: int, deadline_s: float = 3600, model: str = "m", **rest: Any) -> int:
        """Keeps a task, and has it run."""
        specs, priority = rest.get("specs", SPECS), rest.get("priority", 3)
        body = memoryview(b"in!!".ljust(body_bytes(specs)))
        content = Content(
            model, None, specs, body, False, priority, Asked(model, None, priority, specs, body)
        )
        due_ns = self.clock.boot_ns() + int(deadline_s * 1e9)
        now_ms, due_ms = self.clock.now_ms(), self.clock.to_ms(due_ns)
        new = NewTask("a", f"t{number}", content, now_ms, due_ms, 10**9, 10**9)
        ((seq, is_new),) = self.database.commit([lambda db: db.add(new)])
        assert is_new
        kept = self.database.kept("a", f"t{number}")
        assert kept is not None
        self.feeder.add([waiting_from(kept, due_ns)])
        return int(seq)

    def request(self, budget_ms: float, model: str = "m", priority: int = 3) -> None:
        """Submits a request."""
        kind = RequestClass(model, None, ((4,),))
        deadline_ns = self.now_ns() + int(budget_ms * MS)
        body = memoryview(b"in!!")
        self.driver.submit(
            [Submission(kind, SPECS, body, deadline_ns, priority, 1.0, False, self._note)]
        )

    def _note(self, answer: Answer) -> None:
        self.outcomes.append(answer.outcome)

    def outcome(self, number: int) -> str | None:
        """How a task ended, by what is on disk."""
        kept = self.database.kept("a", f"t{number}")
        assert kept is not None
        return None if kept.outcome is None else kept.outcome.value

    async def until_ended(self, count: int) -> None:
        """Waits until so many tasks have ended."""
        while len(self.ended) < count:
            await asyncio.sleep(0.01)

"""Where tasks are handed in, asked about and fetched: store and feeder behind one counter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from scheduler.core.outcomes import Outcome
from scheduler.daemon.driver import Driver
from scheduler.durable.clock import TaskClock
from scheduler.durable.database import PURGED_AT_ONCE, Database
from scheduler.durable.feeder import Feeder
from scheduler.durable.lanes import Waiting, Where, waiting_from
from scheduler.durable.records import Asked, Bounds, Content, Ended, KeptTask, NewTask, class_of
from scheduler.durable.shares import Shares
from scheduler.durable.store import Store, Then
from scheduler.errors import LaxityError, Overloaded, TaskNotFound

TAKEN_AT_ONCE = 1_000
"""Tasks that are taken over from the disk in one turn of the loop."""

MOST_WAITS = 10_000
"""Callers that wait for the end of a task at once; see `Shares`."""

FETCHED_BYTES = 256_000_000
"""Results on their way from the disk to who asked, unless a single one takes more; the same."""

LOOK_AGAIN_S = 0.01
"""After which a task is looked up again that is not among those that will tell of their end."""

HOUSEKEEPING_S = 60.0
"""How often expired results are removed and the clocks compared."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task as it is asked for.

    Attributes:
        kept: What is on disk of it.
        running: Whether a target has it, or is about to.
        left_ms: What is left to its deadline; below 0 after it.
        result: Header and outputs, where it ended with a result.
    """

    kept: KeptTask
    running: bool
    left_ms: int
    result: tuple[dict[str, Any], bytes] | None = None


class TaskDesk:
    """The durable tasks of a box. All of it runs on the driver's loop.

    Args:
        driver: Runs the tasks.
        folder: Where they are kept.
        bounds: How much is kept at most.
        may_run: Whether requests for a model are taken at all.
        clock: Tells the time.
    """

    def __init__(
        self,
        driver: Driver,
        folder: Path,
        bounds: Bounds,
        may_run: Callable[[str], bool],
        clock: TaskClock | None = None,
    ) -> None:
        """Opens the store in the background; what comes meanwhile waits for it."""
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._bounds = bounds
        self._clock = clock or TaskClock()
        self._store = Store(folder, bounds, self._loop)
        self._feeder = Feeder(driver, self._store, self._clock, may_run, self._ended)
        self._refusal: str | None = None
        self._waits = Shares()
        self._fetching = Shares()
        self._waiters: dict[int, list[Callable[[], None]]] = {}
        self._early: list[Callable[[], None]] | None = []
        self._chores = self._loop.call_later(0, self._housekeep)
        self._store.write(lambda db: (db.seen_ms(), db.waiting()), self._opened)

    def _opened(self, found: tuple[int, list[KeptTask]] | LaxityError) -> None:
        if not isinstance(found, LaxityError):
            seen_ms, kept = found
            self._clock.not_before(seen_ms)
            if kept:
                log.info("durable tasks wait", tasks=len(kept), folder=str(self._folder))
            self._take_over(kept)
        else:
            if self._store.problem is None:
                self._store.problem = f"{self._folder}: what waits there does not run: {found}"
                log.error("durable tasks can't be read", error=str(found))
            self._take_over([])

    def _take_over(self, kept: list[KeptTask]) -> None:
        """Has tasks run that were on disk, some at a time, so that no request waits for it."""
        self._feeder.add([self._waiting(task) for task in kept[:TAKEN_AT_ONCE]])
        if len(kept) > TAKEN_AT_ONCE:
            self._loop.call_soon(self._take_over, kept[TAKEN_AT_ONCE:])
            return
        early, self._early = self._early, None
        for call in early or ():
            call()

    def _waiting(self, kept: KeptTask) -> Waiting:
        """A task in memory: with no longer than it was given, whatever the clocks say."""
        left_ms = min(
            kept.deadline_ms - self._clock.wall_ms(), kept.deadline_ms - kept.submitted_ms
        )
        return waiting_from(kept, self._clock.boot_ns() + left_ms * 1_000_000)

    # -- what callers want

    def submit(
        self,
        tenant: str,
        id_: str,
        content: Content,
        budget_ns: int,
        share: tuple[int, int],
        then: Then,
    ) -> None:
        """Keeps a task.

        Args:
            tenant: Whose it is.
            id_: Unique among that tenant's.
            content: What is to be done.
            budget_ns: From now to its deadline.
            share: How many tasks and bytes that tenant may keep.
            then: Told, once it is on disk, whether it is new; or why it is not kept.
        """
        if self._defer(partial(self.submit, tenant, id_, content, budget_ns, share, then)):
            return
        due_ns = self._clock.boot_ns() + budget_ns
        deadline_ms = self._clock.to_wall_ms(due_ns)
        task = NewTask(tenant, id_, content, self._clock.wall_ms(), deadline_ms, *share)

        def written(found: tuple[int, bool] | LaxityError) -> None:
            self._heed(found)
            if isinstance(found, LaxityError):
                then(found)
                return
            seq, is_new = found
            if is_new:
                kind = class_of(content.model, content.variant, content.specs)
                size, priority = len(content.body), content.priority
                has_batch = content.has_batch
                self._feeder.add([Waiting(seq, kind, has_batch, priority, due_ns, size)])
            then(is_new)

        self._store.write(lambda db: db.add(task), written)

    def _heed(self, found: object) -> None:
        """Notes whether the disk takes tasks, for who looks after the box."""
        broken = isinstance(found, LaxityError) and (
            found.detail.get("limit") == "disk" or found.detail.get("durable") is False
        )
        if broken and self._refusal is None:
            log.error("durable tasks are refused", folder=str(self._folder), error=str(found))
        elif self._refusal is not None and not broken:
            log.info("durable tasks are taken again", folder=str(self._folder))
        self._refusal = f"{self._folder}: the last one was refused: {found}" if broken else None

    def known(self, tenant: str, id_: str, asked: Asked, then: Then) -> None:
        """Whether a task is kept already, with that content."""
        self._store.write(lambda db: db.find(tenant, id_, asked.digest()) is not None, then)

    def fetch(self, tenant: str, id_: str, wait_ns: int | None, then: Then) -> None:
        """What is known of a task, with its result where that is waited for.

        Args:
            tenant: Whose it is.
            id_: Its id.
            wait_ns: For how long to wait for its end; None leaves its result out.
            then: Told a `FoundTask`, `TaskNotFound`, or `Overloaded` where too many ask at once.
        """
        if self._defer(partial(self.fetch, tenant, id_, wait_ns, then)):
            return
        end_s = self._loop.time() + (wait_ns or 0) / 1e9

        def looked(kept: KeptTask | LaxityError) -> None:
            if isinstance(kept, LaxityError):
                then(kept)
                return
            left_s = end_s - self._loop.time()
            if kept.outcome is Outcome.COMPLETED and wait_ns is not None:
                self._fetch_result(tenant, kept, then)
            elif kept.outcome is not None or left_s <= 0:
                then(self._found(kept))
            elif not self._wait(tenant, kept.seq, left_s, again):
                text = "as many callers wait for tasks already as may"
                then(Overloaded(text, {"limit": "waits"}))

        def again() -> None:
            self._store.read(partial(_kept, tenant=tenant, id_=id_), looked, tenant)

        again()

    def _fetch_result(self, tenant: str, kept: KeptTask, then: Then) -> None:
        size = max(1, kept.bytes)
        if not self._fetching.take(tenant, size, FETCHED_BYTES):
            text = "results on their way out fill the memory there is for them"
            then(Overloaded(text, {"limit": "bytes"}))
            return

        def fetched(result: tuple[dict[str, Any], bytes] | LaxityError | None) -> None:
            self._fetching.give_back(tenant, size)
            if result is None:
                then(not_found(kept.id))  # it has expired just now
            else:
                then(result if isinstance(result, LaxityError) else self._found(kept, result))

        self._store.read(lambda db: db.result(kept.seq), fetched, tenant)

    def cancel(self, tenant: str, id_: str, then: Then) -> None:
        """Ends a task as cancelled; `then` is told whether it had not ended before."""
        if self._defer(partial(self.cancel, tenant, id_, then)):
            return
        at_ms = self._clock.wall_ms()

        def end(db: Database) -> tuple[int, bool]:
            seq = db.find(tenant, id_)
            if seq is None:
                raise not_found(id_)
            return seq, db.end(Ended(seq, Outcome.CANCELLED, "the caller cancelled", at_ms))

        def written(found: tuple[int, bool] | LaxityError) -> None:
            if isinstance(found, LaxityError):
                then(found)
                return
            seq, was_waiting = found
            if was_waiting:
                self._feeder.forget(seq)
                self._ended(seq)
            then(was_waiting)

        self._store.write(end, written)

    def listed(self, tenant: str, count: int, before: str | None, then: Then) -> None:
        """A tenant's tasks, the newest first from before an id; and how many ended how."""
        if self._defer(partial(self.listed, tenant, count, before, then)):
            return

        def look(db: Database) -> tuple[list[KeptTask], dict[str, int]]:
            seq = None if before is None else db.find(tenant, before)
            if before is not None and seq is None:
                raise not_found(before)
            return db.listed(tenant, count, seq), db.counts(tenant)

        def looked(found: tuple[list[KeptTask], dict[str, int]] | LaxityError) -> None:
            if isinstance(found, LaxityError):
                then(found)
            else:
                then(([self._found(kept) for kept in found[0]], found[1]))

        self._store.read(look, looked, tenant)

    def status(self) -> dict[str, Any]:
        """How it is, for people and programs."""
        return {
            "dir": str(self._folder),
            "problem": self._store.problem or self._refusal,
            "waiting": len(self._feeder.tasks),
            "running": sum(task.where is Where.FED for task in self._feeder.tasks.values()),
        }

    # -- the end of the process

    def stop(self) -> None:
        """Has no more tasks begun; those that run may end."""
        self._chores.cancel()
        self._feeder.stop()

    async def close(self) -> None:
        """Writes what is to be written, and lets go of the store."""
        await self._loop.run_in_executor(None, self._store.close)

    # -- inside

    def _defer(self, call: Callable[[], None]) -> bool:
        """Keeps a call until the store is open; whether it is not yet."""
        if self._early is None:
            return False
        self._early.append(call)
        return True

    def _found(self, kept: KeptTask, result: Any = None) -> FoundTask:
        task = self._feeder.tasks.get(kept.seq)
        running = task is not None and task.where in (Where.FED, Where.ENDING)
        if task is not None:
            left_ms = (task.due_ns - self._clock.boot_ns()) // 1_000_000
        else:
            left_ms = kept.deadline_ms - self._clock.wall_ms()
        return FoundTask(kept, running, left_ms, result)

    def _wait(self, tenant: str, seq: int, seconds: float, again: Callable[[], None]) -> bool:
        """Looks again when a task has ended, or after a time; False where too many wait."""
        if seq not in self._feeder.tasks:  # it ended while it was looked up, or can't be run
            self._loop.call_later(min(seconds, LOOK_AGAIN_S), again)
            return True
        if not self._waits.take(tenant, 1, MOST_WAITS):
            return False
        waiters = self._waiters.setdefault(seq, [])

        def late() -> None:
            waiters.remove(wake)
            if not waiters:
                self._waiters.pop(seq, None)
            self._waits.give_back(tenant, 1)
            again()

        def wake() -> None:
            timer.cancel()
            self._waits.give_back(tenant, 1)
            again()

        timer = self._loop.call_later(seconds, late)
        waiters.append(wake)
        return True

    def _ended(self, seq: int) -> None:
        for wake in self._waiters.pop(seq, ()):
            wake()

    def _housekeep(self) -> None:
        keep_ms = self._bounds.keep_results_ms
        self._chores = self._loop.call_later(min(HOUSEKEEPING_S, keep_ms / 1e3), self._housekeep)
        if self._early is not None:
            return
        self._feeder.look()  # the box may have slept, and with it every timer
        set_ms = self._clock.wall_ms()
        if step_ms := self._clock.step_ms():
            log.warning("the wall clock was set; deadlines move along", step_ms=step_ms)
            moved = partial(self._moved, step_ms)
            self._store.write(lambda db: db.move_clock(step_ms, set_ms), moved)
            return  # what has expired is known once all of it counts by the same clock
        now_ms = self._clock.wall_ms()
        if self._feeder.tasks:
            self._store.write(lambda db: db.note_time(now_ms))
        self._purge(now_ms - keep_ms)

    def _moved(self, step_ms: int, found: LaxityError | None) -> None:
        if found is not None:
            log.error("times on disk can't be moved, which is tried again", error=str(found))
            self._clock.take_back(step_ms)

    def _purge(self, before_ms: int) -> None:
        def purged(count: int | LaxityError) -> None:
            if count == PURGED_AT_ONCE:
                self._purge(before_ms)

        self._store.write(lambda db: db.purge(before_ms), purged)


def _kept(db: Database, tenant: str, id_: str) -> KeptTask:
    kept = db.kept(tenant, id_)
    if kept is None:
        raise not_found(id_)
    return kept


def not_found(id_: str) -> TaskNotFound:
    """The error for an id that a tenant does not have."""
    return TaskNotFound(
        f"there is no durable task {id_!r}: never submitted here, or its result has expired"
    )

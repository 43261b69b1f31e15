"""Submitting, querying, fetching and cancelling tasks: one interface to store and feeder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from scheduler.core.events import BY_CALLER
from scheduler.core.outcomes import Outcome
from scheduler.daemon.driver import Driver
from scheduler.durable.asker import Asker
from scheduler.durable.clock import TaskClock
from scheduler.durable.database import PURGED_AT_ONCE, Database
from scheduler.durable.feeder import Feeder
from scheduler.durable.lanes import Waiting, Where, waiting_from
from scheduler.durable.records import Asked, Bounds, Content, Ended, KeptTask, NewTask, class_of
from scheduler.durable.shares import Shares
from scheduler.durable.store import Store, Then
from scheduler.durable.waits import Waits
from scheduler.errors import LaxityError, Overloaded, TaskNotFound

TAKEN_AT_ONCE = 1_000
"""The most tasks taken over from disk in one iteration of the event loop."""

FETCHED_BYTES = 256_000_000
"""The most bytes of results on their way from disk to callers, unless a single one is larger;
divided by `Shares`."""

MOST_OF_ONE = 0.75
"""The largest part of `FETCHED_BYTES` for one caller: one that reads nothing must not take all that
its tenant may have."""

LOOK_AGAIN_S = 0.01
"""How soon to look up a task again whose end the feeder will not report; then after twice as long
each time, for it may be one that could not be read at the start."""

HOUSEKEEPING_S = 60.0
"""How often expired results are removed and the clocks compared."""

OPEN_AGAIN_S = 10.0
"""How long to wait before a store that could not be opened is tried again."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundTask:
    """The answer to a query about a task.

    Attributes:
        kept: The task as it is on disk.
        running: Whether the driver has it, or its end is being written to disk.
        left_ms: Time left to its deadline; negative after it.
        submitted_unix_ms: When it was submitted, by the wall clock.
        ended_unix_ms: When it ended, by the wall clock; None until then.
        result: Header and outputs, if it ended with a result and that was fetched.
        left: With a result, to be called once that has left the box, or is dropped.
    """

    kept: KeptTask
    running: bool
    left_ms: int
    submitted_unix_ms: int
    ended_unix_ms: int | None
    result: tuple[dict[str, Any], bytes] | None = None
    left: Callable[[], None] | None = None


class TaskDesk:
    """The durable tasks of a box. Every method runs on the driver's loop.

    Args:
        driver: Runs the tasks.
        folder: Where the tasks are stored.
        bounds: Limits on what is kept.
        may_run: Whether requests for a model are accepted at all.
        clock: The clock of tasks.
    """

    def __init__(
        self,
        driver: Driver,
        folder: Path,
        bounds: Bounds,
        may_run: Callable[[str], bool],
        clock: TaskClock | None = None,
    ) -> None:
        """Opens the store in the background; calls made meanwhile wait for it."""
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._bounds = bounds
        self._clock = clock or TaskClock()
        self._store = Store(folder, bounds, self._loop)
        self._waits = Waits()
        self._feeder = Feeder(driver, self._store, self._clock, may_run, self._waits.ended)
        self._refusal: str | None = None
        self._fetching = Shares()
        self._early: list[Callable[[], None]] | None = []
        self._chores = self._loop.call_later(0, self._housekeep)
        self._retry: asyncio.TimerHandle | None = None
        self._store.write(Database.clock, self._start_clock)

    def _start_clock(self, found: tuple[int, int] | LaxityError) -> None:
        if isinstance(found, LaxityError):
            self._opened(found)  # the deadlines on disk mean nothing without their clock
            if self._store.refuses:
                self._open_later()
        else:
            self._clock.start(*found)
            self._store.write(Database.waiting, self._opened)

    def _open_later(self) -> None:
        again = (Database.clock, self._opened_again)
        self._retry = self._loop.call_later(OPEN_AGAIN_S, self._store.open_again, *again)

    def _opened_again(self, found: tuple[int, int] | LaxityError) -> None:
        if isinstance(found, LaxityError):
            self._open_later()
            return
        log.info("durable tasks are taken again", folder=str(self._folder))
        self._refusal = None
        self._early = []
        self._start_clock(found)

    def _opened(self, found: list[KeptTask] | LaxityError) -> None:
        if not isinstance(found, LaxityError):
            if found:
                log.info("durable tasks wait", tasks=len(found), folder=str(self._folder))
            self._take_over(found)
        else:
            if self._store.problem is None:
                self._store.problem = f"{self._folder}: waiting tasks can't be read: {found}"
                log.error("durable tasks can't be read", error=str(found))
            self._take_over([])

    def _take_over(self, kept: list[KeptTask]) -> None:
        """Hands tasks found on disk to the feeder, some at a time, so that no request waits."""
        self._feeder.add([self._waiting(task) for task in kept[:TAKEN_AT_ONCE]])
        if len(kept) > TAKEN_AT_ONCE:
            self._loop.call_soon(self._take_over, kept[TAKEN_AT_ONCE:])
            return
        early, self._early = self._early, None
        for call in early or ():
            call()

    def _waiting(self, kept: KeptTask) -> Waiting:
        """A task in memory, with no more time left than its original budget."""
        left_ms = min(kept.deadline_ms - self._clock.now_ms(), kept.deadline_ms - kept.submitted_ms)
        return waiting_from(kept, self._clock.boot_ns() + left_ms * 1_000_000)

    # -- calls

    def submit(
        self,
        tenant: str,
        id_: str,
        content: Content,
        budget_ns: int,
        share: tuple[int, int],
        then: Then,
    ) -> None:
        """Stores a task and has it run.

        Args:
            tenant: The owner.
            id_: Unique among the tenant's tasks.
            content: The work.
            budget_ns: Time from now to its deadline.
            share: How many tasks and bytes the tenant may keep.
            then: Called once the task is on disk, with whether it is new; or with the error.
        """
        # Before the wait for the store, which counts too.
        self._submit_by(self._clock.boot_ns() + budget_ns, tenant, id_, content, share, then)

    def _submit_by(
        self,
        due_ns: int,
        tenant: str,
        id_: str,
        content: Content,
        share: tuple[int, int],
        then: Then,
    ) -> None:
        if self._defer(partial(self._submit_by, due_ns, tenant, id_, content, share, then)):
            return
        deadline_ms = self._clock.to_ms(due_ns)
        task = NewTask(tenant, id_, content, self._clock.now_ms(), deadline_ms, *share)

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
        """Records whether the disk takes tasks, for the status and the log."""
        broken = isinstance(found, LaxityError) and (
            found.detail.get("limit") == "disk" or found.detail.get("durable") is False
        )
        if broken and self._refusal is None:
            log.error("durable tasks are refused", folder=str(self._folder), error=str(found))
        elif self._refusal is not None and not broken:
            log.info("durable tasks are taken again", folder=str(self._folder))
        self._refusal = f"{self._folder}: the last one was refused: {found}" if broken else None

    def known(self, tenant: str, id_: str, asked: Asked, then: Then) -> None:
        """Tells `then` whether a task with that content is stored."""
        self._store.write(lambda db: db.find(tenant, id_, asked.digest()) is not None, then)

    def fetch(self, tenant: str, id_: str, wait_ns: int | None, then: Then, asker: Asker) -> None:
        """Looks up a task, with its result if the caller waits for it.

        Args:
            tenant: The owner.
            id_: The task's id.
            wait_ns: How long to wait for its end; None leaves the result out.
            then: Called with a `FoundTask`, `TaskNotFound`, or `Overloaded` if too many ask at
                once.
            asker: Who asks; once it is gone, `then` need not be called.
        """
        if self._defer(partial(self.fetch, tenant, id_, wait_ns, then, asker)):
            return
        began_s = self._loop.time()

        def looked(kept: KeptTask | LaxityError) -> None:
            if asker.is_gone:
                return
            if isinstance(kept, LaxityError):
                then(kept)
                return
            waited_s = self._loop.time() - began_s
            left_s = (wait_ns or 0) / 1e9 - waited_s
            if kept.outcome is Outcome.COMPLETED and wait_ns is not None:
                self._fetch_result(tenant, kept, then, asker)
            elif kept.outcome is not None or left_s <= 0:
                then(self._found(kept))
            elif kept.seq not in self._feeder.tasks:  # it ended just now, or can't be run
                self._loop.call_later(min(left_s, max(LOOK_AGAIN_S, waited_s)), again)
            elif not self._waits.begin(tenant, kept.seq, left_s, again, asker):
                text = "too many callers wait for the end of a task already"
                then(Overloaded(text, {"limit": "waits"}))

        def again() -> None:
            self._store.read(partial(_kept, tenant=tenant, id_=id_), looked, tenant)

        again()

    def _fetch_result(self, tenant: str, kept: KeptTask, then: Then, asker: Asker) -> None:
        size = max(1, kept.bytes)
        is_greedy = asker.held and asker.held + size > MOST_OF_ONE * FETCHED_BYTES
        if is_greedy or not self._fetching.take(tenant, size, FETCHED_BYTES):
            text = "results that are being fetched fill the memory for them"
            then(Overloaded(text, {"limit": "bytes"}))
            return
        asker.held += size

        def left() -> None:
            asker.held -= size
            self._fetching.give_back(tenant, size)

        def fetched(result: tuple[dict[str, Any], bytes] | LaxityError | None) -> None:
            if isinstance(result, tuple):
                then(replace(self._found(kept), result=result, left=left))
                return
            left()
            then(result or not_found(kept.id))  # it was purged in the meantime

        self._store.read(lambda db: db.result(kept.seq), fetched, tenant)

    def cancel(self, tenant: str, id_: str, then: Then) -> None:
        """Ends a task as cancelled; tells `then` False if it had already ended."""
        if self._defer(partial(self.cancel, tenant, id_, then)):
            return
        at_ms = self._clock.now_ms()

        def end(db: Database) -> tuple[int, bool]:
            seq = db.find(tenant, id_)
            if seq is None:
                raise not_found(id_)
            return seq, db.end(Ended(seq, Outcome.CANCELLED, BY_CALLER, at_ms))

        def written(found: tuple[int, bool] | LaxityError) -> None:
            if isinstance(found, LaxityError):
                then(found)
                return
            seq, was_waiting = found
            if was_waiting:
                self._feeder.forget(seq)
                self._waits.ended(seq)
            then(was_waiting)

        self._store.write(end, written)

    def forget(self, tenant: str, id_: str, then: Then) -> None:
        """Removes a task, cancelled if need be, and its result; tells `then` if there was one."""
        if self._defer(partial(self.forget, tenant, id_, then)):
            return

        def written(seq: int | LaxityError | None) -> None:
            if isinstance(seq, int):
                self._feeder.forget(seq)
                self._waits.ended(seq)
            then(seq if isinstance(seq, LaxityError) else seq is not None)

        self._store.write(lambda db: db.forget(tenant, id_), written)

    def listed(self, tenant: str, count: int, before: str | None, then: Then) -> None:
        """Lists a tenant's tasks, newest first, older than `before`; with a count per outcome."""
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
        """The state of the desk, for people and programs."""
        return {
            "dir": str(self._folder),
            "problem": self._store.problem or self._refusal,
            "waiting": len(self._feeder.tasks),
            "running": sum(task.where is Where.FED for task in self._feeder.tasks.values()),
        }

    # -- the end of the process

    def stop(self) -> None:
        """Starts no more tasks; those that run may end."""
        self._chores.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._feeder.stop()

    async def close(self) -> None:
        """Completes the pending writes and closes the store."""
        await self._loop.run_in_executor(None, self._store.close)

    # -- inside

    def _defer(self, call: Callable[[], None]) -> bool:
        """Keeps a call until the stored tasks are loaded; returns False if they already are."""
        if self._early is None:
            return False
        self._early.append(call)
        return True

    def _found(self, kept: KeptTask) -> FoundTask:
        task = self._feeder.tasks.get(kept.seq)
        running = task is not None and task.where in (Where.FED, Where.ENDING)
        if task is not None:
            left_ms = (task.due_ns - self._clock.boot_ns()) // 1_000_000
        else:
            left_ms = kept.deadline_ms - self._clock.now_ms()
        unix_ms = self._clock.to_unix_ms
        ended_unix_ms = None if kept.ended_ms is None else unix_ms(kept.ended_ms)
        return FoundTask(kept, running, left_ms, unix_ms(kept.submitted_ms), ended_unix_ms)

    def _housekeep(self) -> None:
        keep_ms = self._bounds.keep_results_ms
        self._chores = self._loop.call_later(min(HOUSEKEEPING_S, keep_ms / 1e3), self._housekeep)
        if self._early is not None:
            return
        self._feeder.look()  # the box may have slept, and its timers with it
        if step_ms := self._clock.step_ms():
            log.warning("the wall clock was set; deadlines stay as far away", step_ms=step_ms)
            shift_ms = self._clock.shift_ms + step_ms
            self._store.write(lambda db: db.shift_clock(shift_ms), partial(self._shifted, shift_ms))
        now_ms = self._clock.now_ms()
        if self._feeder.tasks:
            self._store.write(lambda db: db.note_time(now_ms))
        self._purge(now_ms - keep_ms)

    def _shifted(self, shift_ms: int, found: LaxityError | None) -> None:
        if found is None:
            self._clock.shift_ms = shift_ms
        else:
            log.error("a set clock could not be noted on disk; will try again", error=str(found))

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
    """The error for an id that the tenant has no task for."""
    return TaskNotFound(
        f"there is no durable task {id_!r}: never submitted here, or its result has expired"
    )

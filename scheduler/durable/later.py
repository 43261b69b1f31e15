"""When to look at waiting tasks again: at the end of a delay, and at their deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from scheduler.core.requests import RequestClass
from scheduler.durable.lanes import Waiting

FIRST_DELAY_NS, LONGEST_DELAY_NS = 100_000_000, 30_000_000_000
"""The first delay of a task that is put off and the longest, doubled each time."""

TOGETHER = 16
"""How many refused tasks a success brings back. If they succeed, each brings back as many; if they
are refused again, little work was in vain."""

_SLACK = 1_000
"""How many times of tasks that have ended may be kept, beyond one per task that has not."""


class Later:
    """The times at which to look at tasks, on the clock of `TaskClock.boot_ns`."""

    def __init__(self) -> None:
        """Starts with no tasks."""
        self._times: list[tuple[int, int]] = []
        self._refused: dict[RequestClass, dict[int, Waiting]] = {}

    def expect(self, tasks: Sequence[Waiting], all_tasks: Mapping[int, Waiting]) -> None:
        """Adds the deadlines of tasks; `all_tasks` are those that have not ended, by number."""
        if len(self._times) > 2 * len(all_tasks) + _SLACK:
            self._times = [each for each in self._times if each[1] in all_tasks]
            heapq.heapify(self._times)
        for task in tasks:
            heapq.heappush(self._times, (task.due_ns, task.seq))

    def put_off(self, task: Waiting, now_ns: int, least_ns: int = 0) -> None:
        """Adds the end of a task's delay, which is `least_ns` or longer."""
        delay_ns = min(FIRST_DELAY_NS << min(task.delays, 20), LONGEST_DELAY_NS)
        task.delays += 1
        heapq.heappush(self._times, (now_ns + max(least_ns, delay_ns), task.seq))

    def refuse(self, task: Waiting, now_ns: int, least_ns: int = 0) -> None:
        """Puts off a task for a reason that is over once another of its class succeeds."""
        self._refused.setdefault(task.kind, {})[task.seq] = task
        task.refusals += 1
        self.put_off(task, now_ns, least_ns)

    def start_over(self, kind: RequestClass, now_ns: int) -> None:
        """Ends the delays of some refused tasks soon, because one of their class succeeded."""
        for task in list(islice(self._refused.get(kind, {}).values(), TOGETHER)):
            self.forget(task)
            task.delays = task.refusals = 0
            heapq.heappush(self._times, (now_ns + FIRST_DELAY_NS, task.seq))

    def forget(self, task: Waiting) -> None:
        """Drops a task that has ended; its times stay until they come or `expect` finds many."""
        refused = self._refused.get(task.kind)
        if refused is not None:
            refused.pop(task.seq, None)
            if not refused:
                del self._refused[task.kind]

    def due(self, now_ns: int) -> Iterator[int]:
        """Takes the times that have come; yields the numbers of their tasks."""
        while self._times and self._times[0][0] <= now_ns:
            yield heapq.heappop(self._times)[1]

    def next_ns(self) -> int | None:
        """The next time; None if there is none."""
        return self._times[0][0] if self._times else None

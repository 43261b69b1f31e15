"""Budgets: hard spending limits over sliding windows, which a restart does not reset."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from scheduler.daemon.figures import amount
from scheduler.files import replace_file

log = structlog.get_logger()

_STEP_S = 60
"""Spending is remembered by the minute."""

_ROUNDING = 1e-10
"""Share of the smallest budget by which a cost may exceed what is left: adding up is no more exact,
and a budget of 0.3 must pay for three times 0.1."""

_LEASE = 0.01
"""Share of the smallest budget that is recorded as spent in advance, so that not every batch waits
for the disk; a restart loses no more than this."""


class Purse:
    """Spends within budgets, each a limit on the spending in any window of its length.

    The file on disk never shows less than was spent: it is written ahead by a hundredth of the
    smallest budget, and a restart counts everything in it. If the file can't be read, the budgets
    count as spent, because nothing else would be sure to keep them. Writes are not synced to disk:
    a power failure may lose the spending of the last seconds.

    Args:
        budgets: The spending limit by window length in seconds; empty means no limit and no file.
        path: The file.
        clock_s: The wall clock, which continues across restarts and reboots.
        steady_s: A clock that nobody sets.

    Attributes:
        spent: Total spending since the start of the process.
        budgets: As given.
    """

    def __init__(
        self,
        budgets: Mapping[int, float],
        path: Path,
        clock_s: Callable[[], float],
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads earlier spending from the file."""
        self.budgets = dict(budgets)
        self.spent = 0.0
        self._path = path
        self._clock_s, self._steady_s = clock_s, steady_s
        self._longest_s = max(self.budgets, default=0)
        self._lease = 0.0
        self._steps: deque[list[float]] = deque(self._read() if budgets else ())
        self._steady_was_s = steady_s()
        self._at_s = self._steps[-1][0] if self._steps else clock_s()

    # -- spending

    def reserve(self, cost: float) -> bool:
        """Spends an amount if every budget allows it; returns whether it did."""
        if not self.budgets or not cost:
            self.spent += cost
            return True
        if self.affordable_in_s(cost) != 0.0:
            return False
        now_s = self._now_s()
        self._add(now_s, cost)
        if cost > self._lease:
            ahead = min(_LEASE * min(self.budgets.values()), self.left(now_s))
            if not self._write(now_s, ahead):
                self._add(now_s, -cost)
                return False
            self._lease = ahead
        else:
            self._lease -= cost
        self.spent += cost
        return True

    def refund(self, cost: float, after_s: float = 0.0) -> None:
        """Returns a part of what was reserved `after_s` ago to the minute in which it was."""
        self.spent -= cost
        if self.budgets and cost:
            paid_s = self._now_s() - after_s
            if self._steps:
                before = (step for step in reversed(self._steps) if step[0] <= paid_s)
                next(before, self._steps[0])[1] -= cost

    def left(self, now_s: float | None = None) -> float:
        """How much may be spent now; infinite without a budget."""
        now_s = self._now_s() if now_s is None else now_s
        return min(
            [limit - self._spent_in(seconds, now_s) for seconds, limit in self.budgets.items()],
            default=float("inf"),
        )

    def affordable_in_s(self, cost: float) -> float | None:
        """How long until an amount may be spent; 0 if it may now, None if it exceeds a budget."""
        if not self.budgets:
            return 0.0
        cost -= _ROUNDING * min(self.budgets.values())
        if cost > min(self.budgets.values()):
            return None
        now_s = self._now_s()
        return max([self._wait_s(s, limit - cost, now_s) for s, limit in self.budgets.items()])

    def _wait_s(self, seconds: int, limit: float, now_s: float) -> float:
        """How long until the spending within a window has fallen to a limit."""
        over, wait_s = self._spent_in(seconds, now_s) - limit, 0.0
        for start_s, cost in self._steps:
            if over <= 0:
                break
            if start_s + _STEP_S > now_s - seconds:
                over -= cost
                wait_s = start_s + _STEP_S + seconds - now_s
        return max(0.0, wait_s)

    def _now_s(self) -> float:
        """The time, which goes on from the latest spending while the clock is behind that.

        The clock may have been ahead then, or may be behind now, as on a box that does not know the
        time when it starts.
        """
        before_s, self._steady_was_s = self._steady_was_s, self._steady_s()
        self._at_s = max(self._at_s + self._steady_was_s - before_s, self._clock_s())
        return self._at_s

    def _spent_in(self, seconds: int, now_s: float) -> float:
        """The spending of the last `seconds`."""
        return sum([cost for start_s, cost in self._steps if start_s + _STEP_S > now_s - seconds])

    def _add(self, now_s: float, cost: float) -> None:
        while self._steps and self._steps[0][0] + _STEP_S <= now_s - self._longest_s:
            self._steps.popleft()
        step_s = now_s // _STEP_S * _STEP_S
        if self._steps and self._steps[-1][0] >= step_s:
            self._steps[-1][1] += cost
        else:
            self._steps.append([step_s, cost])

    # -- the file

    def close(self) -> None:
        """Writes the actual spending, without the advance."""
        if self.budgets:
            self._write(self._now_s(), 0.0)

    def _write(self, now_s: float, ahead: float) -> bool:
        """Writes the spending, plus an advance, to the file; returns whether that succeeded."""
        steps = [*map(list, self._steps), [now_s // _STEP_S * _STEP_S, ahead]]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"spent": steps}))
        except OSError as error:
            log.error("spending can't be written down, so nothing is spent", error=str(error))
            return False
        return True

    def _read(self) -> list[list[float]]:
        try:
            spent = json.loads(self._path.read_text())["spent"]
            return [[float(start_s), float(cost)] for start_s, cost in spent]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error(
                "the spending file is damaged; the budget counts as spent (remove the "
                "file to start from zero)",
                file=str(self._path),
                error=repr(error),
            )
            return [[self._clock_s(), max(self.budgets.values())]]

    def describe(self) -> dict[str, Any]:
        """Spending and budgets, for people and programs."""
        now_s = self._now_s()
        return {
            "spent": amount(self.spent),
            "budgets": [
                {
                    "seconds": seconds,
                    "limit": limit,
                    "spent": amount(self._spent_in(seconds, now_s)),
                }
                for seconds, limit in self.budgets.items()
            ],
        }

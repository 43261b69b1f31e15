"""Pays for inferences at one server, and keeps requests back that the budget can't pay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog

from scheduler.config.cloud import CloudConfig
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import Tensors
from scheduler.daemon.cloud.endpoint import ANSWERED, NOT_RUN, RemoteError
from scheduler.daemon.ways.purse import Purse
from scheduler.daemon.ways.sizes import MOST

_EXACT = 1 - 1e-9
"""At most this share of what is left is spent at once, so that rounding can't exceed it."""

_FOREVER_NS = 86_400_000_000_000
"""How long a server is closed if its budget never allows another request."""

_UNWRITTEN_NS = 1_000_000_000
"""How long it is closed if the budget allows spending, but the file can't be written."""

_LEAST_NS = 10_000_000
"""Least time that it is closed, so that it is not asked again and again for reserved money."""

AGAIN_NS = 60_000_000_000
"""A request that was too dear is tried again after this long: by then it may take less time there,
and trying costs nothing."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Lack:
    """A batch that could not be paid, and until when similar ones are kept back at most."""

    requests: int
    seconds: float
    until_ns: int


class Till:
    """Pays for batches before they are sent, for the longest time they may take.

    When a batch can't be paid, others that cost as much are kept back: larger batches of the model,
    or its single requests of some shapes. The server is closed only while nothing at all can be
    paid, or while a refund is due soon.

    Args:
        config: The server's cost per request and per second.
        purse: Holds the budgets.
        clock_ns: The monotonic clock.

    Attributes:
        on_open: Called when a refund reopens the server.
        closed_until_ns: Until when nothing can be paid, on the monotonic clock.
    """

    def __init__(
        self,
        config: CloudConfig,
        purse: Purse,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Nothing is paid yet."""
        self.on_open: Callable[[], None] = lambda: None
        self.closed_until_ns = 0
        self._name = config.name
        self._per_request, self._per_s = config.cost_per_request, config.cost_per_s
        self._purse = purse
        self._clock_ns = clock_ns
        self._awaited = 1, 0.0
        self._batches: dict[str, _Lack] = {}
        self._singles: dict[Tensors, _Lack] = {}

    # -- paying

    def pay(self, requests: int, timeout_s: float) -> bool:
        """Pays for a batch with this timeout; returns False if the budget is spent."""
        return self._purse.reserve(self._cost(requests, timeout_s))

    def affordable_s(self, requests: int, most_s: float) -> float:
        """For how many seconds, up to `most_s`, a batch can be paid now; negative if for none."""
        if not self._per_s or self._purse.left() >= self._cost(requests, most_s):
            return most_s
        return (self._purse.left() * _EXACT - self._cost(requests, 0.0)) / self._per_s

    def give_back(self, requests: int, timeout_s: float, took_ns: int) -> None:
        """Refunds a batch that was paid for but not run, as became known after `took_ns`."""
        self._purse.refund(self._cost(requests, timeout_s), took_ns / 1e9)
        self._came_back()

    def settle(self, timeout_s: float, took_ns: int) -> None:
        """Refunds the unused time of a batch that took `took_ns`."""
        took_s = took_ns / 1e9
        self._purse.refund(self._per_s * max(0.0, timeout_s - took_s), took_s)
        self._came_back()

    def settle_failed(
        self, error: RemoteError, requests: int, timeout_s: float, took_ns: int
    ) -> None:
        """Settles a batch that failed, as became known after `took_ns`.

        A batch that was lost stays paid in full: it may still be running there.
        """
        if error.fault in NOT_RUN or not error.has_gone:
            self.give_back(requests, timeout_s, took_ns)
        elif error.fault in ANSWERED:
            self.settle(timeout_s, took_ns)

    def _came_back(self) -> None:
        if self.closed_until_ns > self._clock_ns() and not self._wait_ns(*self._awaited):
            self.closed_until_ns = 0
            self.on_open()

    def close(self) -> None:
        """Writes the actual spending to the file."""
        self._purse.close()

    # -- keeping back

    def begin(self) -> None:
        """Assumes that everything can be paid, until something can't."""
        self.closed_until_ns = 0
        self._batches.clear()
        self._singles.clear()

    def close_if_spent(self, settled_ns: int | None) -> bool:
        """Closes the server if not even one request can be paid; returns whether it did.

        Args:
            settled_ns: How long until a batch in flight should be settled; None if there is none.
        """
        wait_ns = self._wait_ns(1, 0.0)
        if wait_ns:
            self._close((1, 0.0), wait_ns, settled_ns)
        return wait_ns > 0

    def keep_back(
        self, kind: RequestClass, requests: int, seconds: float, settled_ns: int | None
    ) -> str:
        """Keeps back requests that cost as much as a batch that can't be paid.

        They are kept back until they can be paid, or for a limited time, as they may become faster.

        Args:
            kind: The class of the batch's requests.
            requests: The number of requests.
            seconds: The least time that has to be paid.
            settled_ns: How long until a batch in flight should be settled; None if there is none.

        Returns:
            The reason, for people.
        """
        wait_ns = self._wait_ns(requests, seconds)
        if not wait_ns:
            self._close((requests, seconds), _UNWRITTEN_NS, None)
        elif wait_ns < inf and self._per_s and settled_ns is not None:
            self._close((requests, seconds), wait_ns, settled_ns)
        elif not self.close_if_spent(settled_ns):
            self._note(kind, _Lack(requests, seconds, self._clock_ns() + AGAIN_NS))
        if wait_ns < inf:
            return "the budget is spent"
        return f"{self._cost(requests, seconds):g} is more than the whole budget"

    def _close(self, awaited: tuple[int, float], wait_ns: float, settled_ns: int | None) -> None:
        """Closes the server until the awaited batch can be paid, or a refund may come."""
        self._awaited = awaited
        if self._per_s and settled_ns is not None:
            wait_ns = min(wait_ns, settled_ns)
        self.closed_until_ns = self._clock_ns() + int(min(max(wait_ns, _LEAST_NS), _FOREVER_NS))

    def _note(self, kind: RequestClass, lack: _Lack) -> None:
        if lack.requests > 1:
            self._batches[kind.model] = lack
        else:
            while len(self._singles) >= MOST:
                del self._singles[next(iter(self._singles))]
            self._singles[kind.model, kind.shapes] = lack
        cost = self._cost(lack.requests, lack.seconds)
        log.info(
            "too dear for a cloud's budget",
            target=self._name,
            model=kind.model,
            requests=lack.requests,
            cost=cost,
            left=self._purse.left(),
        )

    def most(self, model: str) -> float:
        """The largest payable batch of a model; infinite if no limit is known."""
        lack = self._batches.get(model)
        return inf if lack is None else lack.requests - 1

    @property
    def too_dear(self) -> tuple[Tensors, ...]:
        """The single requests that can't be paid, as in `TargetSpec.too_large`."""
        return tuple(self._singles)

    def moved(self) -> bool:
        """Stops keeping back what can or may be paid by now; returns whether there was any."""
        now_ns, before = self._clock_ns(), len(self._batches) + len(self._singles)
        if not before:
            return False
        self._batches = {k: v for k, v in self._batches.items() if self._is_lacking(v, now_ns)}
        self._singles = {k: v for k, v in self._singles.items() if self._is_lacking(v, now_ns)}
        return len(self._batches) + len(self._singles) < before

    def _is_lacking(self, lack: _Lack, now_ns: int) -> bool:
        return now_ns < lack.until_ns and self._wait_ns(lack.requests, lack.seconds) > 0

    # -- money

    def describe(self) -> dict[str, Any]:
        """Spending, budgets, what is too dear for them, and for how long they pay for nothing."""
        dear = [
            {"model": model, "requests": each.requests} for model, each in self._batches.items()
        ]
        dear += [{"model": model, "shapes": shapes} for model, shapes in self._singles]
        closed_s = max(0, self.closed_until_ns - self._clock_ns()) / 1e9
        return {**self._purse.describe(), "too_dear": dear, "closed_s": round(closed_s, 3)}

    def _wait_ns(self, requests: int, seconds: float) -> float:
        """How long until a batch can be paid: 0 if it can be now, infinite if it never can."""
        wait_s = self._purse.affordable_in_s(self._cost(requests, seconds))
        if not wait_s:
            return inf if wait_s is None else 0
        return int(wait_s * 1e9) + 1

    def _cost(self, requests: int, seconds: float) -> float:
        return self._per_request * requests + self._per_s * seconds

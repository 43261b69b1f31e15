"""What inferences at one server cost, who pays, and what is kept back for want of money."""

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
"""So much of what is left is spent at once, so that rounding makes it no more than that."""

_FOREVER_NS = 86_400_000_000_000
"""How long a server is closed whose budget never allows another request."""

_UNWRITTEN_NS = 1_000_000_000
"""How long one is closed where spending is within the budget, but can't be written down."""

_LEAST_NS = 10_000_000
"""And at least, lest it be asked again and again for what is reserved for others."""

AGAIN_NS = 60_000_000_000
"""What is too dear is tried again after so long: it may take less time there by then, and to try
costs nothing."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Lack:
    """A batch that could not be paid, and until when the like is kept back at most."""

    requests: int
    seconds: float
    until_ns: int


class Till:
    """Pays for batches before they are sent, for their time up to the latest that it may end.

    What can't be paid keeps back what costs as much: larger batches of a model, or its single
    requests of some shapes. The server is closed only while nothing at all can be paid, or some of
    what was paid is soon to come back.

    Args:
        config: What requests and seconds cost there.
        purse: Pays.
        clock_ns: The monotonic clock.

    Attributes:
        on_open: Called when the server is closed no longer, because money has come back.
        closed_until_ns: Until when nothing can be paid, on the monotonic clock.
    """

    def __init__(
        self,
        config: CloudConfig,
        purse: Purse,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Has paid nothing."""
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
        """Pays for a batch that takes so long at most, unless the budget is spent."""
        return self._purse.reserve(self._cost(requests, timeout_s))

    def affordable_s(self, requests: int, most_s: float) -> float:
        """For how long a batch can be paid now, up to a time; below 0 if for none."""
        if not self._per_s or self._purse.left() >= self._cost(requests, most_s):
            return most_s
        return (self._purse.left() * _EXACT - self._cost(requests, 0.0)) / self._per_s

    def give_back(self, requests: int, timeout_s: float, took_ns: int) -> None:
        """A batch that was paid for was not run, as was said after so long."""
        self._purse.refund(self._cost(requests, timeout_s), took_ns / 1e9)
        self._came_back()

    def settle(self, timeout_s: float, took_ns: int) -> None:
        """A batch that was paid for took that long."""
        took_s = took_ns / 1e9
        self._purse.refund(self._per_s * max(0.0, timeout_s - took_s), took_s)
        self._came_back()

    def settle_failed(
        self, error: RemoteError, requests: int, timeout_s: float, took_ns: int
    ) -> None:
        """A batch that was paid for came to nothing, as was said after so long.

        One that was lost stays paid to the end: it may run on there.
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
        """Writes down what was truly spent."""
        self._purse.close()

    # -- what is kept back

    def begin(self) -> None:
        """Takes it that all can be paid, until it can't."""
        self.closed_until_ns = 0
        self._batches.clear()
        self._singles.clear()

    def close_if_spent(self, settled_ns: int | None) -> bool:
        """Closes while not even the least can be paid; whether that is so.

        Args:
            settled_ns: How long until a batch that is there should be settled; None if none is.
        """
        wait_ns = self._wait_ns(1, 0.0)
        if wait_ns:
            self._close((1, 0.0), wait_ns, settled_ns)
        return wait_ns > 0

    def keep_back(
        self, kind: RequestClass, requests: int, seconds: float, settled_ns: int | None
    ) -> str:
        """A batch can't be paid: what costs as much is kept back, until it can be or may take less.

        Args:
            kind: The class of its requests.
            requests: How many they are.
            seconds: For how long it has to be paid at least.
            settled_ns: How long until another batch should be settled; None if none is there.

        Returns:
            Why, for people.
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
        """Until so much can be paid, or some of what was paid may come back."""
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
        """How many requests of a model a batch may have at most; infinite as far as it knows."""
        lack = self._batches.get(model)
        return inf if lack is None else lack.requests - 1

    @property
    def too_dear(self) -> tuple[Tensors, ...]:
        """The single requests that can't be paid, as `TargetSpec.too_large` has them."""
        return tuple(self._singles)

    def moved(self) -> bool:
        """Lets go of what can be paid by now, or may be; whether there was such."""
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
        """Spending, budgets and what is too dear for them, for people and programs."""
        dear = [
            {"model": model, "requests": each.requests} for model, each in self._batches.items()
        ]
        dear += [{"model": model, "shapes": shapes} for model, shapes in self._singles]
        return {**self._purse.describe(), "too_dear": dear}

    def _wait_ns(self, requests: int, seconds: float) -> float:
        """How long until so much can be paid: 0 where it can be now, infinite where it never is."""
        cost = self._cost(requests, seconds)
        if self._purse.left() >= cost:
            return 0
        wait_s = self._purse.affordable_in_s(cost)
        return inf if wait_s is None else int(wait_s * 1e9) + 1

    def _cost(self, requests: int, seconds: float) -> float:
        return self._per_request * requests + self._per_s * seconds

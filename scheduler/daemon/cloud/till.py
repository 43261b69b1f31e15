"""What inferences at one server cost, and the purse that pays for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.config_cloud import CloudConfig
from scheduler.daemon.ways.purse import Purse

_EXACT = 1 - 1e-9
"""So much of what is left is spent at once, so that rounding makes it no more than that."""

_FOREVER_NS = 86_400_000_000_000
"""How long a server is closed whose budget never allows another request."""


class Till:
    """Pays for batches before they are sent, for their time up to the latest that it may end.

    Args:
        config: What requests and seconds cost there.
        purse: Pays.

    Attributes:
        on_back: Called when some of what was paid has come back.
    """

    def __init__(self, config: CloudConfig, purse: Purse) -> None:
        """Has paid nothing."""
        self.on_back: Callable[[], None] = lambda: None
        self._per_request, self._per_s = config.cost_per_request, config.cost_per_s
        self._purse = purse

    def pay(self, requests: int, timeout_s: float) -> bool:
        """Pays for a batch that takes so long at most, unless the budget is spent."""
        return self._purse.reserve(self._cost(requests, timeout_s))

    @property
    def settles(self) -> bool:
        """Whether some of what is paid usually comes back."""
        return self._per_s > 0

    def affordable_s(self, requests: int, most_s: float) -> float:
        """For how long a batch can be paid now, up to a time; below 0 if for none."""
        if not self._per_s or self._purse.left() >= self._cost(requests, most_s):
            return most_s
        return (self._purse.left() * _EXACT - self._cost(requests, 0.0)) / self._per_s

    def give_back(self, requests: int, timeout_s: float, took_ns: int) -> None:
        """A batch that was paid for was not run, as was said after so long."""
        self._purse.refund(self._cost(requests, timeout_s), took_ns / 1e9)
        self.on_back()

    def settle(self, timeout_s: float, took_ns: int) -> None:
        """A batch that was paid for took that long."""
        took_s = took_ns / 1e9
        self._purse.refund(self._per_s * max(0.0, timeout_s - took_s), took_s)
        self.on_back()

    def closed_ns(self, requests: int = 1, timeout_s: float = 0.0) -> int | None:
        """How long until a batch can be paid; None where it can be now."""
        cost = self._cost(requests, timeout_s)
        if self._purse.left() >= cost:
            return None
        wait_s = self._purse.affordable_in_s(cost)
        return _FOREVER_NS if wait_s is None else int(wait_s * 1e9) + 1

    def close(self) -> None:
        """Writes down what was truly spent."""
        self._purse.close()

    def describe(self) -> dict[str, Any]:
        """Spending and budgets, for people and programs."""
        return self._purse.describe()

    def _cost(self, requests: int, seconds: float) -> float:
        return self._per_request * requests + self._per_s * seconds

"""How the requests of a live replay ended, one by one and counted.

Latency and deadline count from when a request was due, not from when it was sent. A generator that
falls behind therefore can't make the box look good (no coordinated omission). Its lag is measured
and reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from replay.results import LATE_ITSELF
from replay.simulator import Arrival
from scheduler.core.outcomes import Outcome

TOLERATED_LAG_NS = 1_000_000
"""A generator whose 99th percentile of lag is above this has changed the load it should produce."""

TOLERATED_LAG_SHARE = 0.05
"""The same limit as a share of the deadline."""


@dataclass(frozen=True, slots=True)
class LiveEnding:
    """How a request of a live replay ended. Times are nanoseconds from the start.

    Attributes:
        number: Its place in the schedule, from 0.
        arrival: The request that was due, and when.
        sent_ns: When it was sent.
        outcome: One of `Outcome`'s values, or the code of an error, such as `invalid_input`; None
            if nothing came back.
        at_ns: When the ending was known here.
        target: Where it ran; None without a result.
        variant: The variant that ran; None without a result.
        reason: Why there is no result, in words.
        held_ns: How long the box says it held the request; None without a result.
    """

    number: int
    arrival: Arrival
    sent_ns: int
    outcome: str | None
    at_ns: int
    target: str | None = None
    variant: str | None = None
    reason: str = ""
    held_ns: int | None = None

    @property
    def latency_ns(self) -> int:
        """Time from when the request was due to its end."""
        return self.at_ns - self.arrival.at_ns

    @property
    def lag_ns(self) -> int:
        """How late the generator sent it."""
        return max(0, self.sent_ns - self.arrival.at_ns)

    @property
    def on_time(self) -> bool:
        """Whether the caller had a result within the budget."""
        return self.outcome == Outcome.COMPLETED.value and self.latency_ns <= self.arrival.budget_ns


class Spread:
    """Quantiles of numbers from 0, to within 2 percent, in little memory for any count."""

    _STEP = math.log(1.02)

    def __init__(self) -> None:
        """Begins empty."""
        self.count = 0
        self._zeros = 0
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Adds a number."""
        self.count += 1
        if value > 0:
            self._counts[math.ceil(math.log(value) / self._STEP)] += 1
        else:
            self._zeros += 1

    def quantile(self, quantile: float) -> float | None:
        """The value that a share `quantile` does not exceed; None if there are no numbers."""
        if not self.count:
            return None
        left = math.ceil(quantile * self.count) - self._zeros
        if left <= 0:
            return 0.0
        steps = iter(sorted(self._counts))
        step = next(steps)
        while (left := left - self._counts[step]) > 0:
            step = next(steps)
        return math.exp(step * self._STEP)


@dataclass(slots=True)
class LiveTally:
    """The counts of a live replay so far.

    Attributes:
        sent: Requests sent.
        outcomes: Requests per outcome; `none` if nothing came back.
        on_time: Requests with a result within their budget.
        lag_ns: How late the generator sent each request.
        lag_share: The same as a share of each request's budget.
        due_ns: When the last of the requests was due.
        sent_ns: When the last of them was sent.
    """

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    on_time: int = 0
    lag_ns: Spread = field(default_factory=Spread)
    lag_share: Spread = field(default_factory=Spread)
    due_ns: int = 0
    sent_ns: int = 0

    @property
    def ended(self) -> int:
        """How many requests have ended."""
        return self.outcomes.total()

    def add(self, ending: LiveEnding) -> None:
        """Counts an ending."""
        self.outcomes[ending.outcome or "none"] += 1
        self.on_time += ending.on_time
        self.lag_ns.add(ending.lag_ns)
        self.lag_share.add(ending.lag_ns / max(1, ending.arrival.budget_ns))
        self.due_ns = max(self.due_ns, ending.arrival.at_ns)
        self.sent_ns = max(self.sent_ns, ending.sent_ns)

    def warning(self) -> str | None:
        """A warning if the generator fell behind its schedule; None if it kept to it."""
        lag_ns, share = self.lag_ns.quantile(0.99), self.lag_share.quantile(0.99)
        if lag_ns is None or share is None:
            return None
        if lag_ns <= TOLERATED_LAG_NS and share <= TOLERATED_LAG_SHARE:
            return None
        if (self.lag_share.quantile(0.5) or 0.0) >= 1 and self.due_ns:
            asked, could = (self.lag_ns.count / (ns / 1e9) for ns in (self.due_ns, self.sent_ns))
            return (
                f"{LATE_ITSELF}: half of its requests went out after their deadline, since "
                f"{asked:,.0f} a second were due and it sent {could:,.0f}, so this tells nothing "
                "of the box; lower the rate or load, or let more processes send (--jobs)"
            )
        return (
            f"{LATE_ITSELF}: 1 % of its requests went out {lag_ns / 1e6:.1f} "
            f"ms or more after their time ({share:.0%} of their deadline), and that is part of "
            "their latency; give it more processes or a core of its own"
        )


OnEnd = Callable[[LiveEnding], None]
OnProgress = Callable[[LiveTally], None]

PROGRESS_S = 0.5
"""About how often an `OnProgress` is called."""

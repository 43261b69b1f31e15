"""`hedge`: sends a second copy of a running request at the last useful moment. A wrapper.

Rule: the wrapped policy decides about queued requests. If a request still runs at the last moment
at which another, idle target could finish it in time, a copy is sent there as well. The first copy
to finish is the answer; the other is cancelled. The predicted time of second copies is capped at a
share of the time of all first ones. Copies to remote targets are charged to the budget of a
`spill`, if one is wrapped.

Inputs: deadlines, predicted latencies, what runs where and since when; and the inputs of the
wrapped policy. Wins where latency has a long tail or targets hang, and another target is often
idle. Loses a little everywhere else: the copy takes time that a later arrival may have needed.

Source: J. Dean, L. A. Barroso, "The Tail at Scale", CACM 56(2), 2013 (hedged requests), with the
delay set by the deadline instead of a percentile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policies.goodput import Goodput
from policies.parts.budget import HourlyBudget
from policies.parts.wrapping import Wrapper
from policies.spill import Spill
from scheduler.core.offers import Offer
from scheduler.core.policy import (
    Decision,
    Hedge,
    Place,
    Policy,
    View,
    Wake,
    decisions_of,
    watches_runs,
)
from scheduler.core.requests import Request
from scheduler.core.targets import Run, TargetState

_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Copy:
    """A possible second copy, and the latest time at which it is useful."""

    request: Request
    target: TargetState
    offer: Offer
    latest_ns: int


class Hedged(Wrapper):
    """Second copies of requests that are about to be late.

    Args:
        inner: The policy that decides about queued requests; `goodput` if none is given.
        extra: The most time that second copies may take, as a share of that of first ones.
        early_ms: How long before the latest useful start a copy is sent, because timers are
            late and messages take time.
        quantile: The latency quantile to rely on, from 0 to 1, where the inner policy has
            no `quantile` of its own.
    """

    def __init__(
        self,
        inner: Policy | None = None,
        extra: float = 0.05,
        early_ms: float = 1.0,
        quantile: float | None = None,
    ) -> None:
        """Takes its options from the configuration."""
        if not 0 <= extra <= 1:
            raise ValueError(f"extra must be from 0 to 1, not {extra}")
        if early_ms < 0:
            raise ValueError(f"early_ms must be 0 or more, not {early_ms}")
        super().__init__(inner or Goodput(quantile), quantile)
        self.watches_runs = True  # called while nothing is queued too
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, not {self.quantile}")
        self.extra = extra
        self._budget = _budget_of(self.inner)
        self._early_ns = int(early_ms * _MS)
        self._view: View | None = None
        self._first_ns = self._second_ns = 0
        self._copied: set[int] = set()

    def decide(self, view: View) -> Iterator[Decision]:
        """Asks the inner policy, then checks the runs."""
        if self._view is not view:
            self._view = view
            self._first_ns = self._second_ns = 0
            self._copied.clear()
        if view.queues or watches_runs(self.inner):
            for decision in decisions_of(self.inner, view):
                yield decision  # first: the scheduler says best why it is impossible, if it is
                if isinstance(decision, Place):
                    self._first_ns += self._takes_ns(view, decision)
        if len(view.targets) > 1:
            yield from self._second_copies(view)

    def _takes_ns(self, view: View, place: Place | Hedge) -> int:
        target = view.targets[place.target_id]
        return view.predict_ns(
            target, place.offer, len(place.requests), 0.5, place.requests[0].kind
        )

    def _second_copies(self, view: View) -> Iterator[Decision]:
        self._budget.look(view.now_ns)
        runs = [run for target in view.targets.values() for run in target.runs.values()]
        waiting: set[int] = set()
        for run in runs:
            self._copied |= waiting & run.waiting  # also those that another policy has copied
            waiting |= run.waiting
        self._copied &= waiting
        waits_ns = []
        for run in runs:
            for copy in self._copies(view, run):
                if copy.latest_ns - self._early_ns > view.now_ns:
                    waits_ns.append(copy.latest_ns - self._early_ns)
                elif copy.latest_ns >= view.now_ns and copy.target.is_open(view.now_ns):
                    hedge = Hedge(
                        copy.target.spec.id,
                        copy.offer,
                        (copy.request,),
                        f"still runs on {run.target_id}, and could only just be in time here",
                    )
                    took_ns = self._takes_ns(view, hedge)
                    if self._second_ns + took_ns <= self.extra * self._first_ns and (
                        self._budget.pays(self._cost(view, copy.target, copy.offer, copy.request))
                    ):
                        self._second_ns += took_ns
                        self._copied.add(copy.request.id)
                        yield hedge
        if waits_ns:
            yield Wake(min(waits_ns), "the latest useful start of a second copy")

    def _copies(self, view: View, run: Run) -> Iterator[_Copy]:
        """The best second copy for each request of a run that has none yet."""
        others = [
            target
            for target in view.targets.values()
            if target.up and target.spec.id != run.target_id and not target.runs
        ]
        for request in run.requests if others else ():
            if request.id not in run.waiting or request.id in self._copied or request.accept_late:
                continue
            best: _Copy | None = None
            for target in others:
                if target.runs:  # an earlier copy has just gone there
                    continue
                for offer in target.usable(request.kind):
                    if not self._budget.covers(self._cost(view, target, offer, request)):
                        continue
                    takes_ns = view.predict_ns(target, offer, 1, self.quantile, request.kind)
                    way_ns = target.spec.transfer_ns[0]
                    way_ns += target.spec.quickest_ns(request.kind, request.size_bytes)
                    latest_ns = request.deadline_ns - takes_ns - way_ns
                    if best is None or latest_ns > best.latest_ns:
                        best = _Copy(request, target, offer, latest_ns)
            if best is not None:
                yield best

    def _cost(self, view: View, target: TargetState, offer: Offer, request: Request) -> float:
        """What a copy costs the budget, if there is one; only remote targets count."""
        if not (self._budget.is_limited and target.spec.remote):
            return 0.0
        takes_ns = view.predict_ns(target, offer, 1, 0.5, request.kind)
        return target.spec.cost(1, takes_ns, offer.energy(1))


def _budget_of(policy: Policy | None) -> HourlyBudget:
    """The budget for second copies: that of a `spill` among the wrapped policies."""
    while policy is not None:
        if isinstance(policy, Spill):
            return policy.budget
        policy = getattr(policy, "inner", None)
    return HourlyBudget(None)

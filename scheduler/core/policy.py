"""What a policy sees, what it may decide, and the protocol between it and the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Protocol

from scheduler.core.offers import Offer
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState
from scheduler.core.two_choices import nearest_first
from scheduler.core.values import value


@value(frozen=True, slots=True)
class Place:
    """Send these queued requests of one class, as one batch, to that target now.

    Attributes:
        target_id: A target with a free slot.
        offer: The variant to run there.
        requests: The batch, in order; as many as one of the target's batch sizes.
        reason: Why, for people.
    """

    target_id: str
    offer: Offer
    requests: tuple[Request, ...]
    reason: str

    def __post_init__(self) -> None:
        """Refuses what is no batch."""
        _check_batch(self)


@value(frozen=True, slots=True)
class Drop:
    """End a queued request now, as `infeasible`.

    Attributes:
        request: Which one.
        reason: Why, for people.
        earliest_budget_ns: The counter-offer: the smallest budget that each target could meet
            if the request came now.
    """

    request: Request
    reason: str
    earliest_budget_ns: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what callers could not be told."""
        if not isinstance(self.request, Request):
            raise _wrong("Drop.request", "a request of the view", self.request)
        if not isinstance(self.reason, str):
            raise _wrong("Drop.reason", "a text", self.reason)
        offers = self.earliest_budget_ns
        if not isinstance(offers, Mapping) or not all(
            isinstance(name, str) and isinstance(ns, int) for name, ns in offers.items()
        ):
            raise _wrong("Drop.earliest_budget_ns", "whole nanoseconds by target", offers)


@value(frozen=True, slots=True)
class Wake:
    """Ask again at that time, because waiting until then is better than anything now."""

    at_ns: int
    reason: str

    def __post_init__(self) -> None:
        """Refuses what is no time."""
        if not isinstance(self.at_ns, int):
            raise _wrong("Wake.at_ns", "a whole number of nanoseconds", self.at_ns)
        if not isinstance(self.reason, str):
            raise _wrong("Wake.reason", "a text", self.reason)


@value(frozen=True, slots=True)
class Hedge:
    """Send a second copy of running requests of one class to another target now.

    The first copy that is done answers; the other is cancelled.

    Attributes:
        target_id: A target with a free slot that runs none of them.
        offer: The variant to run there.
        requests: The batch, in order; as many as one of the target's batch sizes. None of them
            has a second copy already.
        reason: Why, for people.
    """

    target_id: str
    offer: Offer
    requests: tuple[Request, ...]
    reason: str

    def __post_init__(self) -> None:
        """Refuses what is no batch."""
        _check_batch(self)


def _check_batch(batch: Place | Hedge) -> None:
    if not isinstance(batch.offer, Offer):
        raise _wrong(f"{type(batch).__name__}.offer", "an offer of the target", batch.offer)
    if not isinstance(batch.requests, tuple):
        told = "a tuple of requests of the view"
        raise _wrong(f"{type(batch).__name__}.requests", told, batch.requests)
    if not isinstance(batch.reason, str):
        raise _wrong(f"{type(batch).__name__}.reason", "a text", batch.reason)


def _wrong(field: str, wanted: str, found: object) -> TypeError:
    return TypeError(f"{field} is {wanted}, not {found!r:.60}")


Decision = Place | Drop | Wake | Hedge


class View:
    """The live state of the scheduler, to be read only.

    Nothing is copied: the view changes as decisions are carried out, so a policy that yields
    one decision after the other always sees what is left.

    Attributes:
        now_ns: The time of the event that is being handled.
        fleet_epoch: Rises whenever a target or an offer has changed: what a policy derived
            from these alone holds as long as this stays.
        curve_epoch: Rises whenever a prediction may have changed, or the fleet.
        queues: The queues that hold requests, by class.
        targets: All known targets, by id, in the order in which they first came up.
        has_peers: Whether other boxes are among them.
        is_part: Whether there are more, which get what is late on these.
    """

    __slots__ = (
        "_arrivals",
        "curve_epoch",
        "fleet_epoch",
        "has_peers",
        "is_part",
        "now_ns",
        "queues",
        "targets",
    )

    def __init__(
        self, queues: Mapping[RequestClass, ClassQueue], targets: Mapping[str, TargetState]
    ) -> None:
        """Looks at the scheduler's own containers."""
        self.now_ns = 0
        self.fleet_epoch = 0
        self.curve_epoch = 0
        self.queues = queues
        self.targets = targets
        self.has_peers = False
        self.is_part = False
        self._arrivals: list[Request] = []

    def follow(self, other: View) -> None:
        """Looks at the moment of another view.

        A policy that wraps one keeps a view of its own, of a part of the targets, to show it.
        """
        self.now_ns = other.now_ns
        self.fleet_epoch = other.fleet_epoch
        self.curve_epoch = other.curve_epoch
        self.has_peers = other.has_peers
        self._arrivals = other._arrivals

    @property
    def arrivals(self) -> list[Request]:
        """The requests that this event brought, as far as they are still queued."""
        queues = self.queues
        return [r for r in self._arrivals if r.kind in queues and r in queues[r.kind]]

    def open_targets(self) -> list[TargetState]:
        """The targets to which a batch should be sent now.

        Where there are other boxes, what is nearest comes first, and among those boxes the order
        is one of chance; see `scheduler.core.two_choices`.
        """
        found = [target for target in self.targets.values() if target.is_open(self.now_ns)]
        return nearest_first(found, self.now_ns) if self.has_peers and len(found) > 1 else found

    def age_ns(self, target: TargetState) -> int:
        """How old what is known of a target is.

        A device of this box is known by what it was given; of another box there are reports.
        """
        return self.now_ns - target.told_ns if target.spec.peer else 0

    def start_ns(self, target: TargetState) -> int | None:
        """When a batch sent there would start; None if the target is gone for good.

        That a message needs time to get there is counted, and the bytes of batches before it on
        the way, but not the bytes of its own tensors.
        """
        if target.up:
            free_ns = target.free_ns(self.now_ns)
            base_ns = target.spec.transfer_ns[0] + target.way_wait_ns(self.now_ns)
            return free_ns if not base_ns else max(free_ns, self.now_ns + base_ns)
        return target.back_ns(self.now_ns)

    def predict_ns(
        self,
        target: TargetState,
        offer: Offer,
        batch: int,
        quantile: float,
        kind: RequestClass | None = None,
    ) -> int:
        """How long a batch takes there.

        Args:
            target: Where.
            offer: What of it.
            batch: How many requests.
            quantile: Which share of such batches is done within that time, from 0 to 1.
            kind: Their class; without it their inputs are taken to be as large as those measured.
        """
        return target.curve(offer, kind).predict(batch, quantile)


USUAL_QUANTILE = 0.95


class Policy(Protocol):
    """The rule that decides which request runs where, in which batch, now or later or never.

    It may have three attributes more:

    - `quantile`, the quantile of predicted latencies that it counts on, from 0 to 1. The scheduler
      asks for it to choose the form of inputs for a slow link, and the laws to know a doomed batch.
    - `quantiles`, all on which it may count, where those are several; `quantile` is one of them.
    - `watches_runs`, true where it is to be called as well when requests only run.
    """

    def decide(self, view: View) -> Iterable[Decision]:
        """What to do now; nothing means wait.

        Called after every event that leaves requests queued; what it wished before is void.
        Decisions are carried out one by one as they are yielded; one that is impossible ends the
        call with `PolicyFailed`, those before it hold. A request is to be named by the very object
        that the view holds.
        """
        ...


def decisions_of(policy: Policy, view: View) -> Iterable[Decision]:
    """What a policy decides.

    Raises:
        TypeError: It returned no decisions.
    """
    decisions = policy.decide(view)
    if not hasattr(decisions, "__iter__"):
        told = "is a `return` missing?" if decisions is None else "it returns or yields decisions"
        raise TypeError(f"{type(policy).__name__}.decide returned {decisions!r:.60}; {told}")
    return decisions


def quantile_of(policy: Policy, otherwise: float | None = None) -> float:
    """The quantile of predicted latencies that a policy counts on.

    Args:
        policy: The policy.
        otherwise: What it is if the policy has none; `USUAL_QUANTILE` if not given.
    """
    usual = USUAL_QUANTILE if otherwise is None else otherwise
    quantile: float = getattr(policy, "quantile", usual)
    return quantile


def quantiles_of(policy: Policy, otherwise: float | None = None) -> tuple[float, ...]:
    """All on which it may count, for one target or another; else as `quantile_of`."""
    quantiles: tuple[float, ...] = getattr(policy, "quantiles", ())
    return quantiles or (quantile_of(policy, otherwise),)


def watches_runs(policy: Policy) -> bool:
    """Whether a policy is called as well when nothing waits and requests only run."""
    return bool(getattr(policy, "watches_runs", False))

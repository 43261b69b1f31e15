"""What a policy sees, what it may decide, and its interface to the scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Iterable, Mapping
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
    """Send these queued requests of one class to a target now, as one batch.

    Attributes:
        target_id: A target with a free slot.
        offer: The variant to run there.
        requests: The batch, in order; at least one, and no more than `offer.max_batch`.
        reason: Why, for people.
    """

    target_id: str
    offer: Offer
    requests: tuple[Request, ...]
    reason: str

    def __post_init__(self) -> None:
        """Refuses an invalid batch."""
        _check_batch(self)


@value(frozen=True, slots=True)
class Drop:
    """End a queued request now, as `infeasible`.

    Attributes:
        request: Which one.
        reason: Why, for people.
        earliest_budget_ns: The counter-offer: the smallest budget that each target could meet if
            the request arrived now, by target.
    """

    request: Request
    reason: str
    earliest_budget_ns: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses values that could not be reported to the caller."""
        if not isinstance(self.request, Request):
            raise _wrong("Drop.request", "a request of the view", self.request)
        _check_reason(self)
        offers = self.earliest_budget_ns
        if not isinstance(offers, Mapping) or not all(
            isinstance(name, str) and isinstance(ns, int) for name, ns in offers.items()
        ):
            raise _wrong("Drop.earliest_budget_ns", "whole nanoseconds by target", offers)


@value(frozen=True, slots=True)
class Wake:
    """Ask the policy again at that time, because waiting until then beats acting now."""

    at_ns: int
    reason: str

    def __post_init__(self) -> None:
        """Refuses a value that is no time."""
        if not isinstance(self.at_ns, int):
            raise _wrong("Wake.at_ns", "a whole number of nanoseconds", self.at_ns)
        _check_reason(self)


@value(frozen=True, slots=True)
class Hedge:
    """Send second copies of running requests of one class to another target now.

    The first copy to finish is the answer; the other is cancelled.

    Attributes:
        target_id: A target with a free slot that runs none of them.
        offer: The variant to run there.
        requests: The batch, in order, as for `Place`. None of the requests may have a second copy
            yet.
        reason: Why, for people.
    """

    target_id: str
    offer: Offer
    requests: tuple[Request, ...]
    reason: str

    def __post_init__(self) -> None:
        """Refuses an invalid batch."""
        _check_batch(self)


def _check_batch(batch: Place | Hedge) -> None:
    if not isinstance(batch.offer, Offer):
        raise _wrong(f"{type(batch).__name__}.offer", "an offer of the target", batch.offer)
    if not isinstance(batch.requests, tuple):
        told = "a tuple of requests of the view"
        raise _wrong(f"{type(batch).__name__}.requests", told, batch.requests)
    _check_reason(batch)


def _check_reason(decision: Place | Hedge | Drop | Wake) -> None:
    reason = decision.reason
    if not isinstance(reason, str):
        raise _wrong(f"{type(decision).__name__}.reason", "a text", reason)
    if not reason.isascii():
        try:
            reason.encode()
        except UnicodeEncodeError:
            told = "a text without lone surrogates"
            raise _wrong(f"{type(decision).__name__}.reason", told, reason) from None


def _wrong(field: str, wanted: str, found: object) -> TypeError:
    return TypeError(f"{field} is {wanted}, not {found!r:.60}")


Decision = Place | Drop | Wake | Hedge


class View:
    """A read-only view of the scheduler's live state.

    Nothing is copied. The view changes as decisions are carried out, so a policy that yields its
    decisions one by one always sees what is left.

    Attributes:
        now_ns: The time of the event that is being handled.
        fleet_epoch: Increases whenever a target or an offer changes. What a policy derived from
            these alone stays valid until then.
        curve_epoch: Increases whenever a prediction may have changed, or the fleet has.
        queues: The non-empty queues, by class.
        targets: All known targets, by id, in the order in which they first came up.
        has_peers: Whether any of the targets is another box.
        is_part: Whether these are only some of the targets, and others get what would be late here.
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
        """Refers to the scheduler's own containers."""
        self.now_ns = 0
        self.fleet_epoch = 0
        self.curve_epoch = 0
        self.queues = queues
        self.targets = targets
        self.has_peers = False
        self.is_part = False
        self._arrivals: list[Request] = []

    def follow(self, other: View) -> None:
        """Takes over the time, epochs and arrivals of another view.

        A policy that wraps another keeps a view of its own, with some of the targets, to show to
        it.
        """
        self.now_ns = other.now_ns
        self.fleet_epoch = other.fleet_epoch
        self.curve_epoch = other.curve_epoch
        self.has_peers = other.has_peers
        self._arrivals = other._arrivals

    @property
    def arrivals(self) -> list[Request]:
        """The requests that arrived with this event and are still queued."""
        queues = self.queues
        return [r for r in self._arrivals if r.kind in queues and r in queues[r.kind]]

    def open_targets(self) -> list[TargetState]:
        """The targets to which a batch should be sent now.

        If some are other boxes, the nearest targets come first, and the boxes are in a randomised
        order; see `scheduler.core.two_choices`.
        """
        found = [target for target in self.targets.values() if target.is_open(self.now_ns)]
        return nearest_first(found, self.now_ns) if self.has_peers and len(found) > 1 else found

    def age_ns(self, target: TargetState) -> int:
        """The age of what is known of a target.

        It is 0 for a device of this box, whose state follows from what it was sent, and the age of
        the last report for another box.
        """
        return self.now_ns - target.told_ns if target.spec.peer else 0

    def start_ns(self, target: TargetState) -> int | None:
        """When the next batch sent there would start; None if the target is not expected back.

        This includes the time until there is a slot for it, the time that a message takes to get
        there, and the time that the bytes of earlier batches need on the link, but not the transfer
        time of the batch's own tensors.
        """
        if target.up:
            now_ns = self.now_ns
            free_ns = target.free_ns(now_ns)
            base_ns = target.spec.transfer_ns[0] + target.way_wait_ns(now_ns)
            return max(free_ns, target.sends_ns(now_ns) + base_ns) if base_ns else free_ns
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
            target: The target.
            offer: The offer of it that runs.
            batch: The number of requests.
            quantile: The share of such batches that is done within that time, from 0 to 1.
            kind: Their class; without it, their inputs are taken to be as large as the measured
                ones.
        """
        return target.curve(offer, kind).predict(batch, quantile)


USUAL_QUANTILE = 0.95


class Policy(Protocol):
    """The rule that decides which request runs where, in which batch, and now, later or never.

    A policy may have three more attributes:

    - `quantile`, the quantile of predicted latencies that it relies on, from 0 to 1. The scheduler
      uses it to choose the form of inputs for a slow link, and the laws use it to recognise a
      doomed batch.
    - `quantiles`, all the quantiles that it may rely on, if there are several; `quantile` is one of
      them.
    - `watches_runs`, true if it must also be called while requests run and none is queued.
    """

    def decide(self, view: View) -> Iterable[Decision]:
        """Decides what to do now; no decision means wait.

        Called after every event that leaves requests queued; earlier wake-up wishes are void. Each
        decision is carried out as it is yielded. An impossible one ends the call with
        `PolicyFailed`; those before it stand. A decision must refer to a request by the very object
        that the view holds.
        """
        ...


def decisions_of(policy: Policy, view: View) -> Iterable[Decision]:
    """Calls a policy and returns its decisions.

    Raises:
        TypeError: It returned no decisions.
    """
    decisions = policy.decide(view)
    if not hasattr(decisions, "__iter__"):
        told = "is a `return` missing?" if decisions is None else "it returns or yields decisions"
        if isinstance(decisions, (Coroutine, AsyncIterable)):
            if isinstance(decisions, Coroutine):
                decisions.close()  # Python warns of one that nobody awaits or closes
            raise TypeError(f"{type(policy).__name__}.decide is `async`, which no policy can be")
        raise TypeError(f"{type(policy).__name__}.decide returned {decisions!r:.60}; {told}")
    return decisions


def quantile_of(policy: Policy, otherwise: float | None = None) -> float:
    """The quantile of predicted latencies that a policy relies on.

    Args:
        policy: The policy.
        otherwise: The value for a policy that has none; `USUAL_QUANTILE` if not given.
    """
    usual = USUAL_QUANTILE if otherwise is None else otherwise
    quantile: float = getattr(policy, "quantile", usual)
    return quantile


def quantiles_of(policy: Policy, otherwise: float | None = None) -> tuple[float, ...]:
    """All the quantiles that a policy may rely on; if it names none, that of `quantile_of`."""
    quantiles: tuple[float, ...] = getattr(policy, "quantiles", ())
    return quantiles or (quantile_of(policy, otherwise),)


def watches_runs(policy: Policy) -> bool:
    """Whether a policy is also called while requests run and none is queued."""
    return bool(getattr(policy, "watches_runs", False))

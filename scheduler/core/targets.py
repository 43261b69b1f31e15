"""What each target is doing, and when it takes the next batch."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scheduler.core.latency import Calibration, LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import SizedCurves
from scheduler.core.target_specs import TargetSpec

SURE = 4
"""A batch is sent ahead only if the end of the running one is known to within this many leads.
Otherwise the choice would mostly be made far too early: more urgent requests may arrive, the batch
may fill up, or another target may be free first. That is worth more than the lead saved."""

QUICKER = 2
"""How many times faster than measured a far target may seem. When a link is faster than it usually
is, a batch is back before it would have arrived, which says nothing about the target."""


@dataclass(slots=True)
class Run:
    """A batch at a target.

    Attributes:
        id: Unique within one scheduler.
        target_id: Where it is.
        offer: The variant that runs.
        request_ids: The ids of its requests, in order.
        waiting: The ids of those requests of the batch that a caller still waits for.
        dispatched_ns: When it was sent.
        expected_ns: Predicted execution time (median).
        transfer_ns: Predicted time to get there.
        requests: The requests of the batch, in order.
        cancelled: Whether the target was told that nobody waits for it any more.
        started_ns: When it is assumed to have started, on a target that runs several at once; else
            None.
        spread_ns: How far it may exceed `expected_ns`; nineteen of twenty stay within that.
        together: How many were at the target when it was sent, this one among them.
    """

    id: int
    target_id: str
    offer: Offer
    request_ids: tuple[int, ...]
    waiting: set[int]
    dispatched_ns: int
    expected_ns: int
    transfer_ns: int = 0
    requests: tuple[Request, ...] = ()
    cancelled: bool = False
    started_ns: int | None = None
    spread_ns: int = 0
    together: int = 1


@dataclass(slots=True)
class TargetState:
    """What the scheduler knows of one target, which runs its batches in order of arrival.

    Attributes:
        spec: The spec as last announced.
        up: Whether it takes work.
        returns_ns: While it is down, when it is expected back; None if it is not.
        runs: The runs it holds, oldest first.
        offers: What it can run, by model, in the owner's order of preference.
        last_done_ns: When it last finished a run.
        closed_until_ns: The time until which it takes no new batch, although it is up.
        grandfathered: How many batches from before its spec last changed it still holds; these may
            exceed its slots.
        told_ns: When it last reported.
        up_ns: When it came up.
        awaited: The models and variants that it is expected to report yet.
    """

    spec: TargetSpec
    up: bool = True
    returns_ns: int | None = None
    runs: dict[int, Run] = field(default_factory=dict)
    offers: dict[str, list[Offer]] = field(default_factory=dict)
    last_done_ns: int = 0
    closed_until_ns: int = 0
    grandfathered: int = 0
    told_ns: int = 0
    up_ns: int = 0
    awaited: tuple[tuple[str, str], ...] = ()
    _curves: dict[tuple[str, str], LatencyCurve] = field(default_factory=dict)
    _sized: dict[tuple[str, str], SizedCurves] = field(default_factory=dict)
    _head_done_ns: int = 0
    _behind_ns: int = 0
    _transfer_ns: int = 0
    _opens_ns: int | None = 0
    _stale_ns: int | None = None
    _way_begun_ns: int = 0
    _way_free_ns: int = 0

    # -- what it can run

    def add_offers(self, offers: Iterable[Offer]) -> None:
        """Adds offers, or replaces those of the same model and variant.

        What was learned of an offer is kept if the same offer is repeated. A new measurement starts
        afresh, because it is better than what was learned before it.
        """
        for offer in offers:
            known = self.offers.get(offer.model, [])
            if offer in known:
                continue
            others = [o for o in known if o.variant != offer.variant]
            self.offers[offer.model] = sorted([*others, offer], key=lambda o: (o.rank, o.variant))
            key = offer.model, offer.variant
            self._curves[key] = LatencyCurve(offer)
            self._sized.pop(key, None)
            if offer.item_shapes:
                self._sized[key] = SizedCurves(self._curves[key])
        if self.awaited:
            self.awaited = tuple([key for key in self.awaited if key not in self._curves])

    def withdraw(self, variants: Iterable[tuple[str, str]]) -> None:
        """Removes the offers of these models' variants, and what was learned of them."""
        for model, variant in variants:
            left = [offer for offer in self.offers.get(model, ()) if offer.variant != variant]
            if left:
                self.offers[model] = left
            else:
                self.offers.pop(model, None)
            self._curves.pop((model, variant), None)
            self._sized.pop((model, variant), None)

    def has(self, offer: Offer) -> bool:
        """Whether it offers this model's variant, as measured then or later."""
        return (offer.model, offer.variant) in self._curves

    def usable(self, kind: RequestClass) -> list[Offer]:
        """The offers that serve a class, in the owner's order of preference."""
        if kind.local and self.spec.remote:
            return []
        too_large = self.spec.too_large
        if too_large and (kind.model, kind.shapes) in too_large:
            return []
        offers = self.offers.get(kind.model, [])
        if kind.variant is None:
            return offers
        return [offer for offer in offers if offer.variant == kind.variant]

    def expects(self, kind: RequestClass) -> bool:
        """Whether an awaited offer would serve a class."""
        if kind.local and self.spec.remote:
            return False
        variants = [variant for model, variant in self.awaited if model == kind.model]
        return bool(variants) if kind.variant is None else kind.variant in variants

    def curve(self, offer: Offer, kind: RequestClass | None = None) -> LatencyCurve:
        """The latency of one of its offers over batch size.

        Args:
            offer: One of its offers.
            kind: The class of the requests, for the size of their items; without it, the measured
                size.
        """
        key = offer.model, offer.variant
        if kind is not None and key in self._sized:
            return self._sized[key].curve(kind.shapes)
        return self._curves[key]

    def observe(self, run: Run, now_ns: int) -> None:
        """Learns from a run that is done now, unless its offer is another by now, or withdrawn."""
        if not self.has(run.offer):
            return
        curve = self.curve(run.offer, run.requests[0].kind if run.requests else None)
        if curve.offer is run.offer or curve.offer == run.offer:
            started_ns = self._started_ns(run) if run.started_ns is None else run.started_ns
            together = min(max(run.together, len(self.runs)), self.spec.width)
            size, took_ns = len(run.request_ids), max(1, now_ns - started_ns)
            if any(self.spec.transfer_ns):
                took_ns = max(took_ns, curve.least_ns(size) // QUICKER)
            curve.observe(size, took_ns, now_ns, together)
            self._await_stale(curve)

    def calibration(self) -> list[Calibration]:
        """How well its predictions held, over all its offers, by ascending quantile."""
        tallies: dict[float, list[int]] = {}
        for curve in self._all_curves():
            for promised, batches, kept in curve.calibration():
                tally = tallies.setdefault(promised, [0, 0])
                tally[0] += batches
                tally[1] += kept
        return [Calibration(promised, *tally) for promised, tally in sorted(tallies.items())]

    def refresh(self, now_ns: int) -> bool:
        """Forgets stale predictions; returns whether there were any."""
        if self._stale_ns is None or now_ns < self._stale_ns:
            return False
        ahead: list[int] = []
        count = 0
        for curve in self._all_curves():
            count += curve.forget_stale(now_ns)
            stale_ns = curve.stale_ns()
            if stale_ns is not None:
                ahead.append(stale_ns)
        self._stale_ns = min(ahead, default=None)
        return count > 0

    def refused(self, kind: RequestClass, budget_ns: int) -> None:
        """Learns that a request was refused that it could have run, had it been believed faster."""
        if self.runs or not self.up or self.spec.remote:
            return
        for offer in self.usable(kind):
            curve = self.curve(offer, kind)
            curve.refused(budget_ns)
            self._await_stale(curve)

    def _await_stale(self, curve: LatencyCurve) -> None:
        """Has `refresh` look no later than what a curve learned goes stale."""
        stale_ns = curve.stale_ns()
        if stale_ns is not None and (self._stale_ns is None or stale_ns < self._stale_ns):
            self._stale_ns = stale_ns

    def sizes(self) -> Iterator[tuple[Offer, list[tuple[int, float]]]]:
        """Its offers of models with inputs of any size, and the known factor of each size."""
        for key, sized in self._sized.items():
            yield self._curves[key].offer, sized.known()

    def _all_curves(self) -> Iterator[LatencyCurve]:
        for key, curve in self._curves.items():
            if key in self._sized:
                yield from self._sized[key].all()
            else:
                yield curve

    # -- what it does

    def change(self, spec: TargetSpec, closed_until_ns: int) -> None:
        """Adopts a new spec; its runs go on."""
        self.spec = spec
        self.closed_until_ns = closed_until_ns
        self.grandfathered = len(self.runs)
        self.add_offers(spec.offers)
        self._plan()

    def begin(self, run: Run) -> None:
        """Adds a run."""
        self.runs[run.id] = run
        run.together = len(self.runs)
        self._transfer_ns = run.transfer_ns
        base_ns, byte_ns = self.spec.transfer_ns
        if byte_ns:
            self._way_begun_ns = max(run.dispatched_ns, self._way_free_ns)
            self._way_free_ns = run.dispatched_ns + run.transfer_ns - base_ns
        self._plan()

    def end(self, run: Run, now_ns: int, started: bool) -> None:
        """Removes a run that is over; one that never started took no time."""
        del self.runs[run.id]
        self.grandfathered = min(self.grandfathered, len(self.runs))
        if started:
            self.last_done_ns = now_ns
        if not self.runs:
            self._way_begun_ns = self._way_free_ns = 0
        self._plan()

    def _plan(self) -> None:
        """Recomputes when it is free and opens, which changes only with its runs or its spec."""
        if self.spec.width > 1:
            self._plan_lanes()
        elif self.runs:
            head, *behind = self.runs.values()
            self._head_done_ns = self._started_ns(head) + head.expected_ns
            self._behind_ns = sum([run.expected_ns for run in behind]) if behind else 0
        if len(self.runs) < self.spec.width:
            self._opens_ns = self.closed_until_ns
        else:
            ahead_ns = max(self.spec.lead_ns, self._transfer_ns)
            if self.spec.width == 1 and self._spread_ns() > SURE * ahead_ns:
                self._opens_ns = None
            else:
                opens_ns = self._head_done_ns + self._behind_ns - ahead_ns
                self._opens_ns = max(opens_ns, self.closed_until_ns)
        if self._opens_ns is not None:
            self._opens_ns = max(self._opens_ns, self._way_begun_ns)

    def _spread_ns(self) -> int:
        """How uncertain the end of its runs is."""
        return sum([run.spread_ns for run in self.runs.values()])

    def _plan_lanes(self) -> None:
        """Plans for several batches at once: the next one starts when the first of them is done."""
        runs = list(self.runs.values())
        lanes = []
        for run in runs[: self.spec.width]:
            if run.started_ns is None:
                run.started_ns = self._started_ns(run)
            lanes.append(run.started_ns + run.expected_ns)
        if lanes:
            heapq.heapify(lanes)
            self._head_done_ns = lanes[0]
            for run in runs[self.spec.width :]:
                heapq.heapreplace(lanes, lanes[0] + run.expected_ns)
            self._behind_ns = lanes[0] - self._head_done_ns

    def _started_ns(self, run: Run) -> int:
        """When a run at the head starts or started: once it arrived and the one before was done."""
        return max(run.dispatched_ns + run.transfer_ns, self.last_done_ns)

    def free_ns(self, now_ns: int) -> int:
        """When it is predicted to be free for another batch; at least `now_ns`.

        An overdue run is expected to take as long again as it is overdue, so a target that hangs
        looks worse the longer it hangs.
        """
        if len(self.runs) < self.spec.width:
            free_ns = now_ns
        else:
            free_ns = self._behind_ns + self._until_ns(now_ns)
        return free_ns if free_ns >= self.closed_until_ns else self.closed_until_ns

    def sends_ns(self, now_ns: int) -> int:
        """When there is a slot for another batch; at least `now_ns`."""
        return now_ns if len(self.runs) < self.spec.slots else self._until_ns(now_ns)

    def _until_ns(self, now_ns: int) -> int:
        """When the first of its running batches is expected to be done."""
        done_ns = self._head_done_ns
        return done_ns if done_ns >= now_ns else 2 * now_ns - done_ns

    def beside_ns(self, now_ns: int) -> int | None:
        """When another batch could start if one starts now; None if only once that is done."""
        beside = self.spec.width - len(self.runs)
        if beside == 1 and self.runs:
            return self._until_ns(now_ns)
        return now_ns if beside > 1 else None

    def overdue_ns(self, now_ns: int) -> int:
        """For how long a run should have been over; 0 if none is overdue."""
        return max(0, now_ns - self._head_done_ns) if self.runs else 0

    def way_wait_ns(self, now_ns: int) -> int:
        """How long a batch sent now waits for the bytes of earlier ones on the link."""
        return max(0, self._way_free_ns - now_ns)

    def has_slot(self) -> bool:
        """Whether another batch may be sent at all."""
        return self.up and len(self.runs) < self.spec.slots

    def back_ns(self, now_ns: int) -> int | None:
        """When it takes batches, or takes them again; None if that is not expected.

        An overdue target is expected to take as long again as it is overdue, like a run.
        """
        if self.up:
            return self.closed_until_ns
        back_ns = self.returns_ns
        return back_ns if back_ns is None or back_ns >= now_ns else 2 * now_ns - back_ns

    def opens_ns(self) -> int | None:
        """When the next batch should be sent, given a free slot: a lead before the target is free.

        If the last batch took longer than a lead to get there, the next is sent that much ahead,
        because tensors need time on the link. At most one batch may queue for the link, since more
        urgent requests may arrive. One may, so that a link that is faster than known is kept busy.
        None means once a running batch is done, however long that takes.
        """
        return self._opens_ns

    def is_open(self, now_ns: int) -> bool:
        """Whether a batch should be sent now."""
        opens_ns = self._opens_ns
        return opens_ns is not None and opens_ns <= now_ns and self.has_slot()

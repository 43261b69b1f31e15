"""Where batches can be sent, and what each place is doing now."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from scheduler.core.forms import Form
from scheduler.core.latency import Calibration, LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Request, RequestClass, Shapes
from scheduler.core.sizes import SizedCurves
from scheduler.core.values import sealed

Tensors = tuple[str, Shapes]
"""A model and the shapes of a request's inputs, as in `RequestClass`; all such are of one size."""

UJ_PER_KWH = 3.6e12
"""Microjoules in a kilowatt-hour."""

SURE = 4
"""A batch is sent ahead where the end of what runs is known to within so many leads. Else it would
mostly be settled far too early what runs next: what comes meanwhile may be more urgent, or fill the
batch, and another target may be free first. That is worth more than the lead that it saves."""


@sealed(frozen=True, slots=True)
class TargetSpec:
    """A target as it announces itself.

    Attributes:
        id: E.g. `cpu:0`.
        offers: What it can run, with measured latency.
        slots: How many batches it may hold: those that run and those that wait ahead.
        lead_ns: How long it is idle between two batches if the second is only sent when the first
            is known to be done. So long before it becomes free the next one is sent, unless the
            end of what runs is too uncertain for that; see `SURE`.
        cost_per_request: What each request that runs there costs, in any unit of money.
        cost_per_s: What each second of execution there costs, in the same unit.
        remote: Whether tensors leave the box to get there.
        width: How many of its batches truly run at once; 1 where they run one after the other.
        transfer_ns: How long a batch takes to get there: for the message itself, and for each
            byte of its tensors. Two numbers, of which the second may be a fraction.
        peer: Whether it is another box's scheduler: what is known of it is a report of some age,
            and others send there too.
        too_large: Requests with such tensors are more than it takes, in bytes or in money.
        cost_per_kwh: What a kilowatt-hour costs there, in the same unit.
        forms: The smaller forms that inputs may have on the way there; those of each model in its
            owner's order of preference.

    Raises:
        ValueError: It could never run anything.
    """

    id: str
    offers: tuple[Offer, ...] = ()
    slots: int = 2
    lead_ns: int = 1_000_000
    cost_per_request: float = 0.0
    cost_per_s: float = 0.0
    remote: bool = False
    width: int = 1
    transfer_ns: tuple[int, float] = (0, 0.0)
    peer: bool = False
    too_large: tuple[Tensors, ...] = ()
    cost_per_kwh: float = 0.0
    forms: tuple[Form, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what could never run anything."""
        if self.slots < 1 or self.lead_ns < 0:
            raise ValueError(f"target {self.id!r} needs slots of 1 or more and a lead of 0 or more")
        if not 1 <= self.width <= self.slots:
            raise ValueError(f"target {self.id!r} needs a width from 1 to its {self.slots} slots")
        costs = self.cost_per_request, self.cost_per_s, self.cost_per_kwh
        if min(*self.transfer_ns, *costs) < 0:
            raise ValueError(f"target {self.id!r}: costs and transfer times are 0 or more")

    @property
    def is_paid(self) -> bool:
        """Whether somebody sends a bill for what runs there, as a cloud does.

        Energy is none: what a device draws is a reason to prefer another, not to spare it.
        """
        return bool(self.cost_per_request or self.cost_per_s)

    @property
    def is_dear(self) -> bool:
        """Whether what runs there may cost what it does not elsewhere: money, or precision."""
        return self.is_paid or bool(self.forms)

    def cost(self, requests: int, execution_ns: int, energy_uj: float) -> float:
        """What a batch there costs, with the energy that `Offer.energy` tells of it."""
        energy = self.cost_per_kwh * energy_uj / UJ_PER_KWH
        return self.cost_per_request * requests + self.cost_per_s * execution_ns / 1e9 + energy

    def transfer(self, size_bytes: int, form: Form | None = None) -> int:
        """How long tensors of that size take to get there, in nanoseconds."""
        return self.transfer_ns[0] + self.carry_ns(size_bytes, form)

    def carry_ns(self, size_bytes: int, form: Form | None = None) -> int:
        """The same without what a message takes that has none: the time of their bytes alone."""
        byte_ns = self.transfer_ns[1]
        if form is not None:
            byte_ns = byte_ns * form.share + form.byte_ns
        return int(byte_ns * size_bytes)

    def forms_for(self, kind: RequestClass) -> tuple[Form, ...]:
        """The smaller forms that requests of a class may have."""
        if kind.exact or not self.forms:
            return ()
        return tuple([form for form in self.forms if form.model == kind.model])

    def form_named(self, model: str, name: str) -> Form | None:
        """The form of a model that has a name; None where there is none."""
        return next((f for f in self.forms if f.model == model and f.name == name), None)

    def quickest_ns(self, kind: RequestClass, size_bytes: int) -> int:
        """The time of the bytes of tensors of a class, in whatever form is the quickest."""
        as_it_is_ns = self.carry_ns(size_bytes)
        if not self.forms:
            return as_it_is_ns
        forms_ns = [self.carry_ns(size_bytes, form) for form in self.forms_for(kind)]
        return min([as_it_is_ns, *forms_ns])


def reached_over(spec: TargetSpec, base_ns: int, byte_ns: float) -> TargetSpec:
    """The same target at the other end of a way that takes so long, for a message and per byte.

    The next batch leaves as much earlier. A way that takes no time changes nothing.
    """
    if not base_ns and not byte_ns:
        return spec
    lead_ns = spec.lead_ns + base_ns
    return replace(spec, remote=True, lead_ns=lead_ns, transfer_ns=(base_ns, byte_ns))


@dataclass(slots=True)
class Run:
    """A batch at a target.

    Attributes:
        id: Unique within one scheduler.
        target_id: Where it is.
        offer: The variant that runs.
        request_ids: The batch, in order.
        waiting: Those of the batch for whom somebody still waits.
        dispatched_ns: When it was sent.
        expected_ns: Predicted execution time (median).
        transfer_ns: Predicted time to get there.
        requests: The batch itself.
        cancelled: Whether the target was told that nobody waits any more.
        started_ns: When it is thought to have begun, where several run at once; else None.
        spread_ns: By how much it may take longer than `expected_ns`: nineteen of twenty don't.
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


@dataclass(slots=True)
class TargetState:
    """What the scheduler knows of one target, which runs its batches in the order they came.

    Attributes:
        spec: As announced.
        up: Whether it takes work.
        returns_ns: While it is down, when it is expected back; None when it is not.
        runs: What it holds, oldest first.
        offers: What it can run, by model, in the owner's order of preference.
        last_done_ns: When it last finished a run.
        closed_until_ns: Until then it takes no new batch, although it is up.
        grandfathered: How many batches it held when its slots last changed; it keeps them.
        told_ns: When it was last said what it is like.
        up_ns: When it came up.
        awaited: What the former target of its id could run, while it has yet to report that.
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
    awaited: tuple[Offer, ...] = ()
    _curves: dict[tuple[str, str], LatencyCurve] = field(default_factory=dict)
    _sized: dict[tuple[str, str], SizedCurves] = field(default_factory=dict)
    _head_done_ns: int = 0
    _behind_ns: int = 0
    _transfer_ns: int = 0
    _opens_ns: int | None = 0
    _stale_ns: int | None = None
    _way_free_ns: int = 0

    # -- what it can run

    def add_offers(self, offers: Iterable[Offer]) -> None:
        """Adds offers, or replaces those of the same model and variant.

        What was learned of an offer stays when it is repeated as it was; a new measurement
        starts afresh, because it says more than what was learned before it.
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
            missing = [o for o in self.awaited if (o.model, o.variant) not in self._curves]
            self.awaited = tuple(missing)

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
        """Whether an offer is awaited that would serve a class."""
        if kind.local and self.spec.remote:
            return False
        variants = [offer.variant for offer in self.awaited if offer.model == kind.model]
        return bool(variants) if kind.variant is None else kind.variant in variants

    def curve(self, offer: Offer, kind: RequestClass | None = None) -> LatencyCurve:
        """The latency of one of its offers over batch size.

        Args:
            offer: One that it has.
            kind: Requests of the size that is asked about; without it, that which was measured.
        """
        key = offer.model, offer.variant
        if kind is not None and key in self._sized:
            return self._sized[key].curve(kind.shapes)
        return self._curves[key]

    def observe(self, run: Run, now_ns: int) -> None:
        """Learns from a run that is done now, unless its offer has been replaced meanwhile."""
        curve = self.curve(run.offer, run.requests[0].kind if run.requests else None)
        if curve.offer is run.offer or curve.offer == run.offer:
            started_ns = self._started_ns(run) if run.started_ns is None else run.started_ns
            curve.observe(len(run.request_ids), max(1, now_ns - started_ns), now_ns)
            self._stale_ns = self._stale_ns or curve.stale_ns()

    def calibration(self) -> list[Calibration]:
        """How well its predictions were kept, over all that it can run, by ascending quantile."""
        tallies: dict[float, list[int]] = {}
        for curve in self._all_curves():
            for promised, batches, kept in curve.calibration():
                tally = tallies.setdefault(promised, [0, 0])
                tally[0] += batches
                tally[1] += kept
        return [Calibration(promised, *tally) for promised, tally in sorted(tallies.items())]

    def refresh(self, now_ns: int) -> bool:
        """Forgets what has not been confirmed for long; whether there was such."""
        if self._stale_ns is None or now_ns < self._stale_ns:
            return False
        ahead: list[int] = []
        count = 0
        for curve in self._all_curves():
            stale_ns = curve.stale_ns()
            if stale_ns is not None and stale_ns <= now_ns:
                curve.forget()
                count += 1
                stale_ns = curve.stale_ns()
            if stale_ns is not None:
                ahead.append(stale_ns)
        self._stale_ns = min(ahead, default=None)
        return count > 0

    def sizes(self) -> Iterator[tuple[Offer, list[tuple[int, float]]]]:
        """Its offers of models that take inputs of any size, and what each size takes."""
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
        """Takes over what is known of it from now on; what it runs goes on."""
        self.spec = spec
        self.closed_until_ns = closed_until_ns
        self.grandfathered = len(self.runs)
        self.add_offers(spec.offers)
        self._plan()

    def begin(self, run: Run) -> None:
        """Takes a run in."""
        self.runs[run.id] = run
        self._transfer_ns = run.transfer_ns
        if self.spec.forms:
            self._way_free_ns = run.dispatched_ns + run.transfer_ns - self.spec.transfer_ns[0]
        self._plan()

    def end(self, run: Run, now_ns: int, started: bool) -> None:
        """Lets a run go that is over; one that never started took no time."""
        del self.runs[run.id]
        self.grandfathered = min(self.grandfathered, len(self.runs))
        if started:
            self.last_done_ns = now_ns
        if not self.runs:
            self._way_free_ns = 0
        self._plan()

    def _plan(self) -> None:
        """Reckons anew when it is free, which only changes with what it holds."""
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

    def _spread_ns(self) -> int:
        """How uncertain the end of what it holds is."""
        return sum([run.spread_ns for run in self.runs.values()])

    def _plan_lanes(self) -> None:
        """Where several batches run at once, the next one starts when the first of them is done."""
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
        """When a run began that is, or was, next: once it was there, and what was before done."""
        return max(run.dispatched_ns + run.transfer_ns, self.last_done_ns)

    def free_ns(self, now_ns: int) -> int:
        """When it is predicted to start another batch; at least `now_ns`.

        A run that is overdue is expected to need as long again as it is overdue, so that a
        target that hangs looks worse the longer it does.
        """
        if len(self.runs) < self.spec.width:
            free_ns = now_ns
        else:
            done_ns = self._head_done_ns
            free_ns = self._behind_ns + (done_ns if done_ns >= now_ns else 2 * now_ns - done_ns)
        return free_ns if free_ns >= self.closed_until_ns else self.closed_until_ns

    def way_wait_ns(self, now_ns: int) -> int:
        """How long the bytes of a batch wait for those before it on a way that is known to be slow.

        That is only reckoned where inputs may be made smaller for it.
        """
        return max(0, self._way_free_ns - now_ns)

    def has_slot(self) -> bool:
        """Whether another batch may be sent at all."""
        return self.up and len(self.runs) < self.spec.slots

    def back_ns(self, now_ns: int) -> int | None:
        """When it takes batches again that does not now; None if that is not expected.

        One that is overdue is expected to need as long again as it is overdue, as runs are.
        """
        if self.up:
            return self.closed_until_ns
        back_ns = self.returns_ns
        return back_ns if back_ns is None or back_ns >= now_ns else 2 * now_ns - back_ns

    def opens_ns(self) -> int | None:
        """When the next batch should be sent, given a slot: a lead before it was to be free.

        Or earlier, by as much as the last batch took to get there: tensors need time on a link.
        None is once what runs is done, however long that takes.
        """
        return self._opens_ns

    def is_open(self, now_ns: int) -> bool:
        """Whether a batch should be sent now."""
        opens_ns = self._opens_ns
        return opens_ns is not None and opens_ns <= now_ns and self.has_slot()

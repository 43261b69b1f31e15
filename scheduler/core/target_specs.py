"""A target as it announces itself."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.forms import Form
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass, Shapes
from scheduler.core.values import sealed

Tensors = tuple[str, Shapes]
"""A model and input shapes, as in `RequestClass`; requests alike in these have the same size."""

UJ_PER_KWH = 3.6e12
"""Microjoules in a kilowatt-hour."""


@sealed(frozen=True, slots=True)
class TargetSpec:
    """A target as it announces itself.

    Attributes:
        id: Its id, e.g. `cpu:0`.
        offers: What it can run, with measured latencies.
        slots: How many batches it may hold, running and waiting ahead.
        lead_ns: How long it is idle between two batches if the second is sent only once the first
            is known to be done. The next batch is sent this long before the target becomes free,
            unless the end of the running one is too uncertain; see `TargetState`.
        cost_per_request: What each request that runs there costs, in any unit of money.
        cost_per_s: What each second of execution there costs, in the same unit.
        remote: Whether tensors leave this box to get there.
        width: How many of its batches run concurrently; 1 if they run one after the other.
        transfer_ns: How long a batch takes to get there: nanoseconds for the message itself, and
            nanoseconds per byte of its tensors, which may be a fraction.
        peer: Whether it is another box's scheduler, of which only reports are known, and to which
            other boxes send as well.
        too_large: The tensors of requests that it refuses as too large or too expensive.
        cost_per_kwh: What one kilowatt-hour costs there, in the same unit.
        forms: The smaller forms in which inputs may travel there; those of each model are in its
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
        """Refuses a spec that could never run anything."""
        if self.slots < 1 or self.lead_ns < 0:
            raise ValueError(f"target {self.id!r} needs slots of 1 or more and a lead of 0 or more")
        if not 1 <= self.width <= self.slots:
            raise ValueError(f"target {self.id!r} needs a width from 1 to its {self.slots} slots")
        costs = self.cost_per_request, self.cost_per_s, self.cost_per_kwh
        if min(*self.transfer_ns, *costs) < 0:
            raise ValueError(f"target {self.id!r}: costs and transfer times are 0 or more")

    @property
    def is_paid(self) -> bool:
        """Whether what runs there is billed, as in a cloud.

        Energy does not count: its cost makes another device preferable, but is no reason to avoid
        this one.
        """
        return bool(self.cost_per_request or self.cost_per_s)

    @property
    def is_dear(self) -> bool:
        """Whether running there may cost something extra: money, or precision."""
        return self.is_paid or bool(self.forms)

    def cost(self, requests: int, execution_ns: int, energy_uj: float) -> float:
        """What a batch costs there, given its energy from `Offer.energy`."""
        energy = self.cost_per_kwh * energy_uj / UJ_PER_KWH
        return self.cost_per_request * requests + self.cost_per_s * execution_ns / 1e9 + energy

    def lane_ns(self, latency_ns: int, link_ns: int = 0) -> int:
        """How long a batch keeps others from one of the `width` lanes: the price of sending it.

        That is how long it takes there. On a far target it may be longer: its slot is taken on the
        way as well, and with few slots lanes idle meanwhile; and while its tensors occupy the link,
        nothing gets there for the other lanes either.

        Args:
            latency_ns: How long it takes there, with the transfer of its tensors.
            link_ns: How long the transfer of its tensors takes.
        """
        way_ns = self.transfer_ns[0]
        if not (way_ns or link_ns):
            return latency_ns
        slot_ns = (latency_ns + way_ns) * self.width // self.slots
        return max(latency_ns, slot_ns, link_ns * self.width)

    def transfer(self, size_bytes: int, form: Form | None = None) -> int:
        """How long a message with tensors of that size takes to get there, in nanoseconds."""
        return self.transfer_ns[0] + self.carry_ns(size_bytes, form)

    def carry_ns(self, size_bytes: int, form: Form | None = None) -> int:
        """The part of `transfer` that the bytes alone take, without that of an empty message."""
        byte_ns = self.transfer_ns[1]
        if form is not None:
            byte_ns = byte_ns * form.share + form.byte_ns
        return int(byte_ns * size_bytes)

    def forms_for(self, kind: RequestClass) -> tuple[Form, ...]:
        """The smaller forms that requests of a class may take."""
        if kind.exact or not self.forms:
            return ()
        return tuple([form for form in self.forms if form.model == kind.model])

    def form_named(self, model: str, name: str) -> Form | None:
        """A model's form with this name; None if there is none."""
        return next((f for f in self.forms if f.model == model and f.name == name), None)

    def quickest_ns(self, kind: RequestClass, size_bytes: int) -> int:
        """The transfer time of the bytes of a class's tensors, in whatever form is quickest."""
        as_it_is_ns = self.carry_ns(size_bytes)
        if not self.forms:
            return as_it_is_ns
        forms_ns = [self.carry_ns(size_bytes, form) for form in self.forms_for(kind)]
        return min([as_it_is_ns, *forms_ns])


def reached_over(spec: TargetSpec, base_ns: int, byte_ns: float) -> TargetSpec:
    """The same target, reached over a link that takes this long per message and per byte.

    The next batch leaves earlier by the time per message. A link that takes no time changes
    nothing.
    """
    if not base_ns and not byte_ns:
        return spec
    lead_ns = spec.lead_ns + base_ns
    return replace(spec, remote=True, lead_ns=lead_ns, transfer_ns=(base_ns, byte_ns))

"""What is sent where it costs something, or to others: the cheapest that is in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import in_time
from scheduler.core.policy import Place
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState

Affords = Callable[[float], bool]
"""Whether a batch that costs so much may be sent. Where it is asked for a purchase, a yes is a
promise to send it, and may be counted as spent."""


def price(bid: Bid) -> float:
    """What a single request costs there, with what is cheapest."""
    return min(
        bid.target.spec.cost(1, curve.predict(1, 0.5), offer.energy(1))
        for offer, curve in zip(bid.offers, bid.curves, strict=True)
    )


def purchases(
    outlook: Outlook,
    late: Iterable[Request],
    sells: Callable[[TargetState], bool],
    reason: str,
    affords: Affords = lambda _cost: True,
) -> Iterator[Place]:
    """The largest batches of late requests that open targets could finish in time.

    Each goes where a request costs least; of targets that cost alike, to one that takes inputs as
    they are, and then to the first in the view's order, which is one of chance where there are
    other boxes.

    Args:
        outlook: What the targets could do; it must have looked, and looks after each batch.
        late: The requests, in order.
        sells: Which targets count.
        reason: Why, for people.
        affords: Whether a batch can be paid; where not, a smaller one is tried, and then the next
            dearer target.
    """
    left = list(late)
    while left:
        by_kind: dict[RequestClass, list[Request]] = {}
        for request in left:
            by_kind.setdefault(request.kind, []).append(request)
        bids = _cheapest_first(outlook, by_kind, sells)
        place = next(
            (p for bid in bids if (p := _batch(outlook, bid, by_kind[bid.kind], reason, affords))),
            None,
        )
        if place is None:
            return
        yield place
        taken = {request.id for request in place.requests}
        left = [request for request in left if request.id not in taken]
        outlook.look(outlook.view)


def _cheapest_first(
    outlook: Outlook, kinds: Iterable[RequestClass], sells: Callable[[TargetState], bool]
) -> list[Bid]:
    """What open targets offer to classes."""
    places = {target.spec.id: place for place, target in enumerate(outlook.view.open_targets())}
    found = [
        bid
        for kind in kinds
        for bid in outlook.bids(kind)
        if bid.target_id in places and sells(bid.target)
    ]
    return sorted(
        found, key=lambda bid: (price(bid), bool(bid.target.spec.forms), places[bid.target_id])
    )


def _batch(
    outlook: Outlook, bid: Bid, alike: list[Request], reason: str, affords: Affords
) -> Place | None:
    start_ns = outlook.starts_ns[bid.target_id]
    for (offer, ladder), curve in zip(bid.ladders(), bid.curves, strict=True):
        for batch in in_time(alike, ladder, start_ns):
            size = len(batch)
            cost = bid.target.spec.cost(size, curve.predict(size, 0.5), offer.energy(size))
            if affords(cost):
                return Place(bid.target_id, offer, tuple(batch), reason)
    return None

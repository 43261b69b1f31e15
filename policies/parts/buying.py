"""Batches for costly targets or other boxes: the cheapest target that is in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import in_time
from scheduler.core.policy import Place
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState

Affords = Callable[[float], bool]
"""Whether a batch of this cost may be sent. When `purchases` asks and the answer is yes, the batch
is sent, so its cost may be counted as spent."""


def price(bid: Bid) -> float:
    """What a single request costs there, with the cheapest variant."""
    return min(batch_price(bid, place, 1) for place in range(len(bid.offers)))


def batch_price(bid: Bid, place: int, size: int) -> float:
    """What a batch costs there, with the variant at that place of the bid."""
    offer, curve = bid.offers[place], bid.curves[place]
    return bid.target.spec.cost(size, curve.predict(size, 0.5), offer.energy(size))


def purchases(
    outlook: Outlook,
    late: Iterable[Request],
    sells: Callable[[TargetState], bool],
    reason: str,
    affords: Affords = lambda _cost: True,
) -> Iterator[Place]:
    """Yields the largest batches of late requests that open targets could finish in time.

    Each batch goes where a request costs least, and last to a target that has failed it. Ties go
    first to a target that takes inputs unchanged, then to the first in the view's order, which is
    randomised if there are other boxes.

    Args:
        outlook: What the targets could do. Its `look` must have been called, and is called again
            after each batch.
        late: The requests, in order.
        sells: Whether a target may be used.
        reason: Why, for people.
        affords: Whether a batch can be paid for; if not, a smaller one is tried, and then the next
            more expensive target.
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
    """The bids of open targets for these classes, in the order in which to use them."""
    places = {target.spec.id: place for place, target in enumerate(outlook.view.open_targets())}
    found = [
        bid
        for kind in kinds
        for bid in outlook.bids(kind)
        if bid.target_id in places and sells(bid.target)
    ]

    def rank(bid: Bid) -> tuple[bool, float, bool, int]:
        target = bid.target
        return bid.failed, price(bid), bool(target.spec.forms), places[bid.target_id]

    return sorted(found, key=rank)


def _batch(
    outlook: Outlook, bid: Bid, alike: list[Request], reason: str, affords: Affords
) -> Place | None:
    start_ns = outlook.starts_ns[bid.target_id]
    for place, (offer, ladder) in enumerate(bid.ladders()):
        for batch in in_time(alike, bid, ladder, start_ns):
            if affords(batch_price(bid, place, len(batch))):
                return Place(bid.target_id, offer, tuple(batch), reason)
    return None

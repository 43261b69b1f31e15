"""The loop that most policies share: drop doomed requests, then fill open targets by a rule."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from policies.parts.outlook import Bid, Outlook
from scheduler.core.latency import Ladder
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Drop, Place, View, Wake
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState
from scheduler.core.values import value

Choose = Callable[[TargetState], "Place | Wake | None"]
"""What an open target should do next, or until when it should wait; None if no queued request could
be in time there."""

Arranged = Callable[[list[TargetState]], list[TargetState]]
"""Reorders the targets of the outlook into the order in which they are filled."""

Drops = Callable[[], Iterator[Drop]]
"""The drops of requests that can't be finished in time any more."""


LOOK_AGAIN_NS = 1_000_000
"""The minimum time until requests that wait for a busy target are looked at again."""


def serve(outlook: Outlook, view: View, choose: Choose) -> Iterator[Decision]:
    """Drops requests that no target can finish in time, and fills every open target by a rule."""
    outlook.look(view)
    yield from fill(outlook, choose, outlook.doomed)


def fill(
    outlook: Outlook, choose: Choose, drops: Drops, arranged: Arranged | None = None
) -> Iterator[Decision]:
    """Like `serve`, but with given drops, and for an outlook that is already up to date.

    Requests that may be late are served where the rule finds nothing.
    """
    view = outlook.view
    yield from drops()
    placed = False
    targets = outlook.open_targets()
    for target in arranged(targets) if arranged else targets:
        while target.is_open(view.now_ns):
            decision = choose(target) or outlook.late_welcome(target)
            if decision is not None:
                yield decision
            if not isinstance(decision, Place):
                break
            placed = True
            outlook.look(view)
    if placed:
        yield from drops()
    yield from outlook.second_tries()


def some_open(view: View, wanted: Callable[[TargetState], bool]) -> bool:
    """Whether any target of a kind is open; unlike `View.open_targets`, in no order."""
    return any(each.is_open(view.now_ns) and wanted(each) for each in view.targets.values())


def order(request: Request) -> tuple[int, int, int]:
    """The sort key for the order of service."""
    return request.priority, request.deadline_ns, request.id


@value(frozen=True, slots=True)
class Candidate:
    """A batch that would be in time on a target.

    Attributes:
        queue: The queue of its requests.
        bid: The target's bid for their class.
        offer: The variant.
        batch: The first requests in order that would be in time.
        latency_ns: How long it takes, at the promised quantile.
        done_ns: When it would be done.
    """

    queue: ClassQueue
    bid: Bid
    offer: Offer
    batch: list[Request]
    latency_ns: int
    done_ns: int

    @property
    def lane_ns(self) -> int:
        """How long it keeps others from a lane of the target."""
        return self.bid.lane_ns(len(self.batch), self.latency_ns)

    @property
    def priority(self) -> int:
        """The priority of its most important request, which is the first."""
        return self.batch[0].priority

    @property
    def deadline_ns(self) -> int:
        """The earliest deadline in it."""
        return min([request.deadline_ns for request in self.batch])

    def place(self, reason: str) -> Place:
        """Makes the decision to send it."""
        return Place(self.bid.target_id, self.offer, tuple(self.batch), reason)


def candidates(outlook: Outlook, target: TargetState) -> Iterator[Candidate]:
    """Every batch, over class, variant and size, that would be in time on a target now.

    A size that the queue doesn't fill counts only if it pays (`Bid.pays`).
    """
    start_ns = outlook.starts_ns[target.spec.id]
    for queue, bid in outlook.waiting(target):
        for offer, ladder in bid.ladders():
            for batch, latency_ns in batches(queue, bid, ladder, start_ns):
                yield Candidate(queue, bid, offer, batch, latency_ns, start_ns + latency_ns)


def batches(
    queue: ClassQueue, bid: Bid, ladder: Ladder, start_ns: int
) -> Iterator[tuple[list[Request], int]]:
    """The batches of the first requests in a queue that are in time, the smallest first.

    Args:
        queue: The queue.
        bid: What the target offers to it.
        ladder: One of its ladders.
        start_ns: When a batch would start there.

    Returns:
        Each with how long it takes.
    """
    waiting = len(queue)
    for at, size in enumerate(ladder.sizes):
        if at and ladder.sizes[at - 1] >= waiting:
            break
        latency_ns = ladder.latency_ns[at]
        if size > waiting:
            latency_ns -= (size - waiting) * bid.item_ns
        batch = queue.first(size, start_ns + latency_ns)
        count = len(batch)
        if count < size:
            if bid.pays(ladder, at, count):
                yield batch, bid.takes_ns(ladder, at, count)
            break
        yield batch, latency_ns


def in_time(
    alike: list[Request], bid: Bid, ladder: Ladder, start_ns: int
) -> Iterator[list[Request]]:
    """Like `batches`, of given requests of one class; the largest first."""
    room = bisect_left(ladder.sizes, len(alike))
    for at in range(min(room, len(ladder.sizes) - 1), -1, -1):
        done_ns = start_ns + bid.takes_ns(ladder, at, len(alike))
        batch = [r for r in alike if r.deadline_ns >= done_ns][: ladder.sizes[at]]
        if bid.pays(ladder, at, len(batch)):
            yield batch

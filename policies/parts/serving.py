"""The loop that most policies share: drop what is lost, then fill each open target by a rule."""

from __future__ import annotations

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
"""What an open target should do next, or until when it should do nothing; None if nothing that
waits could be in time there."""

Arranged = Callable[[list[TargetState]], list[TargetState]]
"""The order in which targets are filled, from that of the outlook."""

Drops = Callable[[], Iterator[Drop]]
"""What can't be finished in time, now."""


def serve(outlook: Outlook, view: View, choose: Choose) -> Iterator[Decision]:
    """Drops what no target can finish in time, and fills every open target by a rule."""
    outlook.look(view)
    yield from fill(outlook, choose, outlook.doomed)


def fill(
    outlook: Outlook, choose: Choose, drops: Drops, arranged: Arranged | None = None
) -> Iterator[Decision]:
    """The same with other drops, for an outlook that has looked.

    What may be late is served where the rule finds nothing.
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


def order(request: Request) -> tuple[int, int, int]:
    """The order of service."""
    return request.priority, request.deadline_ns, request.id


@value(frozen=True, slots=True)
class Candidate:
    """A batch that would be in time on a target.

    Attributes:
        queue: Where its requests wait.
        bid: What the target offers to their class.
        offer: The variant.
        batch: The first in order that would be in time, as many as one of the batch sizes.
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
    def priority(self) -> int:
        """That of its most important request, which is the first in order."""
        return self.batch[0].priority

    @property
    def deadline_ns(self) -> int:
        """The earliest of its deadlines."""
        return min([request.deadline_ns for request in self.batch])

    def place(self, reason: str) -> Place:
        """The decision to send it."""
        return Place(self.bid.target_id, self.offer, tuple(self.batch), reason)


def candidates(outlook: Outlook, target: TargetState) -> Iterator[Candidate]:
    """Every class, variant and batch size that would be in time on a target now."""
    start_ns = outlook.starts_ns[target.spec.id]
    for queue, bid in outlook.waiting(target):
        for offer, ladder in bid.ladders():
            for at, size in enumerate(ladder.sizes):
                latency_ns = ladder.latency_ns[at]
                done_ns = start_ns + latency_ns
                batch = queue.first(size, done_ns) if size <= len(queue) else []
                if len(batch) < size:
                    break
                yield Candidate(queue, bid, offer, batch, latency_ns, done_ns)


def in_time(alike: list[Request], ladder: Ladder, start_ns: int) -> Iterator[list[Request]]:
    """The batches of requests of one class that are in time, of those named, the largest first."""
    for size, latency_ns in zip(reversed(ladder.sizes), reversed(ladder.latency_ns), strict=True):
        batch = [r for r in alike if r.deadline_ns >= start_ns + latency_ns][:size]
        if len(batch) == size:
            yield batch

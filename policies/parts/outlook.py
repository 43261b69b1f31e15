"""What each target could do for each class: derived from the view, cached until it changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace

from policies.parts.odds import Odds
from scheduler.core.latency import Ladder, LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.policy import Drop, Place, View, Wake
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState
from scheduler.core.values import sealed

NEVER_NS = 1 << 62
"""Later than all other times."""


@sealed(frozen=True, slots=True)
class Bid:
    """What one target offers to one class.

    Attributes:
        kind: The class.
        target: The target; it is up or expected back.
        target_id: Its id.
        offers: What it can run for the class, in the owner's order of preference.
        curves: The latency of each of them.
        quantile: The latency quantile to rely on, from 0 to 1.
        item_ns: How long the tensors of one request take to get there.
        failed: Whether it has failed the only request of the class, which other targets then get if
            they can.
    """

    kind: RequestClass
    target: TargetState
    target_id: str
    offers: tuple[Offer, ...]
    curves: tuple[LatencyCurve, ...]
    quantile: float
    item_ns: int = 0
    failed: bool = False

    def one_ns(self) -> int:
        """How long a single request takes with the fastest offer."""
        if len(self.curves) == 1:
            return self.curves[0].ladder(self.quantile).latency_ns[0] + self.item_ns
        return (
            min([curve.ladder(self.quantile).latency_ns[0] for curve in self.curves]) + self.item_ns
        )

    def alone_ns(self) -> int:
        """How long a single request takes with the fastest offer, including the way there."""
        return self.way_ns() + self.one_ns()

    def way_ns(self) -> int:
        """How long a message without tensors takes to get there."""
        return self.target.spec.transfer_ns[0]

    def lane_ns(self, size: int, latency_ns: int) -> int:
        """How long a batch keeps others from a lane of the target (`TargetSpec.lane_ns`).

        Args:
            size: Its number of requests.
            latency_ns: How long it takes there, with the transfer of its tensors.
        """
        return self.target.spec.lane_ns(latency_ns, size * self.item_ns)

    def takes_ns(self, ladder: Ladder, at: int, count: int) -> int:
        """How long so many requests, or those that fit, take in a batch of one of `ladders`."""
        return ladder.latency_ns[at] - max(0, ladder.sizes[at] - count) * self.item_ns

    def pays(self, ladder: Ladder, at: int, count: int) -> bool:
        """Like `Ladder.pays`, for one of `ladders`: on the way, time is taken up as well."""
        if not self.way_ns() or count == ladder.sizes[at]:
            return ladder.pays(at, count)
        if not at or count <= ladder.sizes[at - 1]:
            return False
        lane_ns = self.lane_ns(count, self.takes_ns(ladder, at, count))
        return count > self.rate(ladder, at - 1) * lane_ns

    def largest(self, ladder: Ladder, waiting: int) -> tuple[int, int]:
        """Like `Ladder.largest`, for one of `ladders`."""
        at = bisect_right(ladder.sizes, waiting)
        if at < len(ladder.sizes) and self.pays(ladder, at, waiting):
            return at, waiting
        return at - 1, ladder.sizes[at - 1]

    def rate(self, ladder: Ladder, at: int) -> float:
        """The highest throughput of a lane, with one of `ladders` up to a place in its sizes."""
        if not self.way_ns():
            return ladder.rate[at]
        takes = zip(ladder.sizes[: at + 1], ladder.latency_ns, strict=False)
        return max([size / self.lane_ns(size, latency_ns) for size, latency_ns in takes])

    def ladders(self) -> Iterator[tuple[Offer, Ladder]]:
        """Each offer with its latencies."""
        for at, offer in enumerate(self.offers):
            ladder = self.curves[at].ladder(self.quantile)
            yield offer, _with_transfer(ladder, self.item_ns) if self.item_ns else ladder


class Outlook:
    """A policy's view, with what is derived from it.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
        odds: Chooses the quantile per class; None to use `quantile` for all.

    Attributes:
        view: The view.
        starts_ns: When each target could start a batch, without those not expected back.
        some_dear: Whether any target is costly (`TargetSpec.is_dear`).
        epoch: Increases whenever bids may have changed other than through learned latencies.
    """

    view: View

    def __init__(self, quantile: float, odds: Odds | None = None) -> None:
        """Starts before its first look."""
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, not {quantile}")
        self.quantile = quantile
        self.odds = odds
        self.starts_ns: dict[str, int] = {}
        self.some_dear = False
        self.epoch = 0
        self._seen: tuple[View, int] | None = None
        self._targets: list[tuple[str, TargetState]] = []
        self._bids: dict[RequestClass, list[Bid]] = {}
        self._ones: dict[RequestClass, list[tuple[str, int]]] = {}
        self._ones_epoch = -1
        self._unsized: list[RequestClass] = []
        self._failed: dict[RequestClass, None] = {}

    def look(self, view: View) -> bool:
        """Updates from the view; must be called at each event and after every placement.

        Returns:
            Whether this is the view of a different scheduler, of which nothing is known yet.
        """
        seen, epoch = self._seen or (None, -1)
        is_other = seen is not view
        if is_other or epoch != view.fleet_epoch:
            self.view = view
            self._seen = view, view.fleet_epoch
            self._bids.clear()
            self._ones_epoch = -1
            self.epoch += 1
            self._targets = list(view.targets.items())
            self.some_dear = any(target.spec.is_dear for _, target in self._targets)
        if self.odds is not None and self.odds.due:
            self._ask_again(self.odds.due)
        if self._unsized:
            self._ask_sizes()
        if self._ones_epoch != view.curve_epoch:
            self._ones_epoch = view.curve_epoch
            self._ones.clear()
        starts = self.starts_ns
        starts.clear()
        for target_id, target in self._targets:
            start_ns = view.start_ns(target)
            if start_ns is not None:
                starts[target_id] = start_ns
        return is_other

    def bids(self, kind: RequestClass) -> list[Bid]:
        """What the targets offer to a class."""
        bids = self._bids.get(kind)
        if bids is None:
            if len(self._bids) > 10 * len(self.view.queues) + 100:
                self._bids.clear()
            bids = [
                self._bid(kind, target, offers)
                for target_id, target in self.view.targets.items()
                if target_id in self.starts_ns and (offers := tuple(target.usable(kind)))
            ]
            quantile = self._quantile(kind, bids)
            if quantile != self.quantile:
                bids = [replace(bid, quantile=quantile) for bid in bids]
            self._bids[kind] = bids
            if kind.failed_at is not None:
                queues = self.view.queues
                self._failed = {each: None for each in [*self._failed, kind] if each in queues}
            if kind not in self.view.queues and any(b.target.spec.transfer_ns[1] for b in bids):
                self._unsized.append(kind)
        return bids

    def _bid(self, kind: RequestClass, target: TargetState, offers: tuple[Offer, ...]) -> Bid:
        curves = tuple([target.curve(offer, kind) for offer in offers])
        item_ns, target_id = self._item_ns(kind, target), target.spec.id
        failed = kind.failed_at == target_id
        return Bid(kind, target, target_id, offers, curves, self.quantile, item_ns, failed)

    def _quantile(self, kind: RequestClass, bids: list[Bid]) -> float:
        """The quantile to rely on for a class."""
        view = self.view
        if self.odds is None or (view.is_part and not view.has_peers):
            return self.quantile
        offered = [(bid.curves, bid.way_ns() + bid.item_ns, bid.target.spec.width) for bid in bids]
        return self.odds.quantile(kind, offered, is_backed=self.some_dear or view.has_peers)

    def _ask_again(self, due: list[RequestClass]) -> None:
        """Discards the bids of classes for which another quantile is now best."""
        for kind in due:
            bids = self._bids.get(kind)
            if bids and bids[0].quantile != self._quantile(kind, bids):
                del self._bids[kind]
                self._ones_epoch = -1
                self.epoch += 1
        due.clear()

    def _ask_sizes(self) -> None:
        """Discards bids that were made before the size of the requests was known."""
        queues = self.view.queues
        for kind in self._unsized:
            if kind in queues and self._bids.pop(kind, None) is not None:
                self._ones_epoch = -1
                self.epoch += 1
        self._unsized = [k for k in self._unsized if k not in queues and k in self._bids]

    def _item_ns(self, kind: RequestClass, target: TargetState) -> int:
        """The transfer time of a request's tensors: all requests of a class have the same size."""
        spec = target.spec
        queue = self.view.queues.get(kind) if spec.transfer_ns[1] else None
        return spec.quickest_ns(kind, queue.head().size_bytes) if queue else 0

    def waiting(self, target: TargetState) -> list[tuple[ClassQueue, Bid]]:
        """The queues that a target should serve, with its bid for each.

        A request that it failed is left to free targets for as long as one could be in time.
        """
        return [
            (queue, bid)
            for kind, queue in self.view.queues.items()
            for bid in self.bids(kind)
            if bid.target is target and not (bid.failed and self._others(queue, bid))
        ]

    def _others(self, queue: ClassQueue, failed: Bid) -> list[Bid]:
        """The bids of free targets that could be in time for a request that this one failed."""
        deadline_ns = queue.head().deadline_ns
        return [
            bid
            for bid in self.bids(queue.kind)
            if bid is not failed
            and not bid.target.spec.is_dear
            and self.done_ns(bid) <= deadline_ns
        ]

    def second_tries(self) -> Iterator[Wake]:
        """Until when requests that a remote target failed wait for others, as in `waiting`."""
        queues, now_ns = self.view.queues, self.view.now_ns
        for kind in self._failed:
            queue = queues.get(kind)
            if queue is None:
                continue
            for failed in [bid for bid in self.bids(kind) if bid.failed]:
                if others := self._others(queue, failed):
                    last_ns = queue.soonest_ns() - failed.way_ns()
                    hope_ns = queue.soonest_ns() - min([bid.one_ns() for bid in others]) + 1
                    wake_ns = last_ns - failed.one_ns()
                    why = f"{failed.target_id} failed it, and {others[0].target_id} could do it"
                    yield Wake(wake_ns if wake_ns > now_ns else hope_ns, why)

    def open_targets(self) -> list[TargetState]:
        """The open targets, ordered by how soon each could finish one of the queued requests.

        So if several are idle, the fastest serves first. Costly targets come last. If there are
        other boxes, the order is that of the view.
        """
        view = self.view
        targets = view.open_targets()
        if len(targets) < 2 or view.has_peers:
            return targets
        soonest_ns = {target.spec.id: NEVER_NS for target in targets}
        for kind in view.queues:
            for bid in self.bids(kind):
                done_ns = self.done_ns(bid)
                if done_ns < soonest_ns.get(bid.target_id, 0):
                    soonest_ns[bid.target_id] = done_ns
        return sorted(targets, key=lambda target: (target.spec.is_dear, soonest_ns[target.spec.id]))

    def free_ns(self, bid: Bid) -> int:
        """When a message can leave for a target, to be served there as soon as it arrives."""
        return self.starts_ns[bid.target_id] - bid.way_ns()

    def done_ns(self, bid: Bid) -> int:
        """When a single request would be done there if it were served next."""
        return self.starts_ns[bid.target_id] + bid.one_ns()

    def budgets_ns(
        self, kind: RequestClass, free_ns: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """The counter-offer: the smallest budget that each target could meet now.

        Args:
            kind: The class.
            free_ns: When each target could start; if not given, as currently predicted.
        """
        starts, now_ns = self.starts_ns if free_ns is None else free_ns, self.view.now_ns
        return {
            bid.target_id: starts[bid.target_id] + bid.one_ns() - now_ns for bid in self.bids(kind)
        }

    def earliest_ns(self, kind: RequestClass) -> int | None:
        """The earliest that one request of a class would be done if it were served next."""
        soonest_ns = None
        for target_id, one_ns in self.ones_ns(kind):
            done_ns = self.starts_ns[target_id] + one_ns
            if soonest_ns is None or done_ns < soonest_ns:
                soonest_ns = done_ns
        return soonest_ns

    def ones_ns(self, kind: RequestClass) -> list[tuple[str, int]]:
        """How long each target takes for a single request of a class."""
        ones = self._ones.get(kind)
        if ones is None:
            if len(self._ones) > 10 * len(self.view.queues) + 100:
                self._ones.clear()
            ones = self._ones[kind] = [(bid.target_id, bid.one_ns()) for bid in self.bids(kind)]
        return ones

    def overdue(self) -> list[tuple[ClassQueue, int]]:
        """The queues with requests that no target can finish in time any more.

        Each comes with the earliest time at which one of its requests could be done; the requests
        that are due before that are overdue.
        """
        starts = self.starts_ns
        found = []
        for queue in self.view.queues.values():
            soonest_ns = queue.soonest_ns()
            ones = self.ones_ns(queue.kind)
            for target_id, one_ns in ones:
                if starts[target_id] + one_ns <= soonest_ns:
                    break
            else:
                if ones:
                    found.append((queue, min([starts[at] + one_ns for at, one_ns in ones])))
        return found

    def doomed(self) -> Iterator[Drop]:
        """Drops the queued requests that no target can finish in time any more.

        A request whose caller accepts late results is never doomed: it may be served until its
        deadline has passed.
        """
        for queue, earliest_ns in self.overdue():
            budgets = self.budgets_ns(queue.kind)
            for request, why in too_late(queue, earliest_ns):
                yield Drop(request, why, budgets)

    def late_welcome(self, target: TargetState) -> Place | None:
        """A batch of requests that will be late, for a target with nothing else to do.

        These are requests that no target can finish in time and whose callers accept late results.
        """
        for queue, bid in self.waiting(target):
            earliest_ns = self.earliest_ns(queue.kind)
            if earliest_ns is None or queue.soonest_ns() >= earliest_ns:
                continue
            late = [request for request in queue.due(earliest_ns) if request.accept_late]
            if late:
                offer, ladder = next(bid.ladders())
                batch = tuple(late[: bid.largest(ladder, len(late))[1]])
                return Place(target.spec.id, offer, batch, "late, as the caller allows")
        return None


def too_late(queue: ClassQueue, earliest_ns: int) -> list[tuple[Request, str]]:
    """The requests of a queue that are due before they could be done, with the reason to drop each.

    Args:
        queue: An overdue queue.
        earliest_ns: The earliest time at which one of its requests could be done.
    """
    return [
        (each, f"would be {late_by(earliest_ns - each.deadline_ns)} at the earliest")
        for each in queue.due(earliest_ns)
        if not each.accept_late
    ]


def _with_transfer(ladder: Ladder, item_ns: int) -> Ladder:
    """Adds the transfer time of the tensors to latencies; rates stay those of execution."""
    latency_ns = tuple(
        latency_ns + size * item_ns
        for size, latency_ns in zip(ladder.sizes, ladder.latency_ns, strict=True)
    )
    return Ladder(ladder.sizes, latency_ns, ladder.rate)


def late_by(late_ns: int) -> str:
    """A lateness for people, in ms; never 0.0, which would read as in time."""
    return f"{max(0.1, late_ns / 1e6):.1f} ms late"

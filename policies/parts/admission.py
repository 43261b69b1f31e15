"""Admission: whether a new request is likely to be served in time.

The wait of a request is estimated by a fluid model: the work queued ahead of it in (priority,
deadline, id) order is served at the best rate that its targets reach together. A class's work is
spread evenly over the targets that serve it, so it delays a request only on the targets that they
share. A request that costs more time per weight than others is assumed to wait longer, if a request
at least as important behind it would have to wait for it. So the costly one is refused first. While
more arrives than can be done, this is only assumed of those that cost too much to be done as well,
once the cheaper ones are: the rest of the time goes to the cheapest of them.

The error of this estimate is learned from how promises turn out (`parts.caution`), and the wait is
multiplied by the learned factor.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import fsum, inf

from policies.parts.caution import Caution
from policies.parts.outlook import Bid, Outlook, late_by
from policies.parts.pace import Pace, caught_up_ns
from policies.parts.remembering import MOST_KINDS, make_room
from policies.parts.serving import order
from scheduler.core.policy import Drop, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState

COSTLIER = 4.0
"""The most by which the wait of a costly request is multiplied."""

WORTHWHILE = 1.05
"""A larger batch counts as missed if it would have raised throughput by this factor."""

REFUSED = 128
"""How many refused requests of a class are remembered."""

SPARE = 2.0
"""How many times as long as expected the queued requests count, where a batch could go that takes
longer than another: what was promised should not hang on the last moment, and of a queue only some
places are looked at, of which each has twice as many ahead as the next. Where batches are far
shorter than the pause between two (`TargetSpec.lead_ns`), that pause counts instead."""

LOOKED_AT = 16
"""In how many of the longest queues requests are looked at that may miss behind a batch."""

_TRIES = 3
"""How many budgets are tried for a counter-offer before one that is certain to do."""

_NEWEST = 1 << 62
"""An id greater than all others."""


class Admission:
    """Decides about new requests.

    Args:
        outlook: What the targets could do.

    Attributes:
        caution: How much longer waits turn out than estimated.
        fitting: The step of the cost per weight (`Pace.step`) below which the targets have time for
            all recent arrivals; -inf if they have for all. `parts.coming` finds it.
        usual: The harmonic mean of the weights of recent arrivals: only their ratios may count.
    """

    def __init__(self, outlook: Outlook) -> None:
        """Uses the outlook of its policy."""
        self.caution = Caution()
        self.fitting: float = -inf
        self.usual = 1.0
        self._least_ns = 0.0
        self._outlook = outlook
        self._seen: tuple[View, int, int] | None = None
        self._epoch = -1
        self._paces: dict[RequestClass, Pace] = {}
        self._queues: list[ClassQueue] = []
        self._lanes: list[tuple[ClassQueue, Pace]] = []
        self._looked_ns = 0
        self._refused: dict[RequestClass, deque[int]] = {}

    def look(self) -> None:
        """Updates what is derived from the queues and predictions."""
        view = self._outlook.view
        seen = self._seen
        if seen is None or seen[0] is not view:
            self._refused.clear()
            self.caution = Caution()
        elif seen[2] != view.curve_epoch:
            current = [(kind, pace) for kind, pace in self._paces.items() if pace.is_current()]
            self._paces = dict(current if len(current) < MOST_KINDS else ())
        elif len(self._paces) > 10 * len(view.queues) + MOST_KINDS:
            self._paces = {kind: p for kind, p in self._paces.items() if kind in view.queues}
        now = view, self._outlook.epoch, view.curve_epoch
        queues = list(view.queues.values())
        if seen == now and queues == self._queues:
            return
        self._seen, self._queues = now, queues
        lanes = self._lanes = []
        for queue in queues:
            kind = queue.kind
            pace = self.pace(kind)
            if pace.bids:
                lanes.append((queue, pace))
        self._least_ns = min([pace.cost_ns for _, pace in lanes], default=0.0)

    def pace(self, kind: RequestClass) -> Pace:
        """The pace at which a class's work is done, on the targets that there are now."""
        if self._epoch != self._outlook.epoch:
            self._epoch = self._outlook.epoch
            self._paces.clear()
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = Pace(self._outlook.bids(kind))
        return pace

    def refusal(self, request: Request) -> Drop | None:
        """Decides whether to refuse a queued arrival.

        Returns:
            The refusal, with its reason and what would be possible; None if the request is
            admitted.
        """
        self.look()
        pace = self._paces[request.kind]
        if not pace.bids:
            return None
        done_ns = self._soonest_ns(request)
        if done_ns <= request.deadline_ns:
            return None
        soonest_ns = self._outlook.earliest_ns(request.kind)
        if soonest_ns is not None and soonest_ns > request.deadline_ns:
            why = f"would be {late_by(soonest_ns - request.deadline_ns)} at the earliest"
        else:
            if soonest_ns is not None:
                self._remember(request)
            late = late_by(done_ns - request.deadline_ns)
            why = f"would be {late} behind what was admitted before"
        return Drop(request, why, self._offer(request, done_ns))

    # -- the fluid schedule

    def has_room(self, request: Request, besides: int) -> bool:
        """Whether an arrival would be in time with `besides` fewer of its class ahead of it."""
        return self._soonest_ns(request, besides) <= request.deadline_ns

    def _soonest_ns(self, request: Request, besides: int = 0) -> int:
        """When a request is expected done, with `besides` fewer of its class ahead of it."""
        pace = self._paces[request.kind]
        starts_ns = pace.starts_ns(self._outlook)
        ready_ns = self._ready_ns(request, pace, starts_ns, besides, imagined=False)
        return pace.soonest_ns(starts_ns, ready_ns)

    def _ready_ns(
        self, request: Request, pace: Pace, starts_ns: list[int], besides: int, imagined: bool
    ) -> int:
        """When the work ahead of a request is expected to be done.

        Args:
            request: A queued request, or one imagined in its queue.
            pace: The pace of its class.
            starts_ns: When a message can leave for each of its targets.
            besides: How many requests of its class ahead of it not to count.
            imagined: Whether the request is only imagined in its queue.
        """
        now_ns = self._outlook.view.now_ns
        work_ns = 0.0
        behind = 0 if imagined else -1  # itself
        for queue, other in self._lanes:
            waiting = len(queue)
            ahead = queue.count_ahead(request)
            if behind <= 0:  # one is enough
                behind += queue.count_to(request.priority) - ahead
            if other is pace:
                ahead -= besides
            if ahead:
                share_ns = other.cost_ns if waiting >= other.full else other.share_ns(waiting)
                work_ns += ahead * share_ns * pace.part(other)
        wait_ns = caught_up_ns(starts_ns, work_ns) - now_ns
        wait_ns *= self.caution.factor(pace, request.weight, request.priority)
        costlier = pace.cost_ns * self.usual / (request.weight * self._least_ns)
        if behind > 0 and costlier > 1.0 and pace.step(request.weight) >= self.fitting:
            wait_ns *= costlier if costlier < COSTLIER else COSTLIER
        return now_ns + int(wait_ns)

    def would_miss(self, batch: Sequence[Request], bid: Bid, done_ns: int, instead_ns: int) -> bool:
        """Whether queued requests would miss behind a batch, but not behind a shorter one.

        Unlike one that can start only now, they may miss because of how many they are. In each
        long queue the last request is looked at, the one in the middle, and so on to the first.

        Args:
            batch: The first requests of their queue, which either batch serves.
            bid: What the target offers to their class.
            done_ns: When the target is free behind the batch.
            instead_ns: When it is free behind the shorter one.
        """
        self.look()
        spec = bid.target.spec
        pause_ns = 0 if spec.remote else spec.lead_ns
        lanes = self._lanes
        if len(lanes) > LOOKED_AT:
            lanes = nlargest(LOOKED_AT, lanes, key=_length)
        for queue, pace in lanes:
            if bid.target_id not in pace.target_ids:
                continue
            served = len(batch) if queue.kind == bid.kind else 0
            behind_ns = self._starts_ns(pace, bid.target_id, done_ns)
            shorter_ns = self._starts_ns(pace, bid.target_id, instead_ns)
            place = len(queue) - 1
            while place >= served:
                request = queue.nth(place)
                work_ns = self._work_ahead_ns(request, pace) - served * pace.cost_ns
                paused_ns = work_ns + (place - served) * pause_ns / pace.full
                ready_ns = int(caught_up_ns(behind_ns, max(SPARE * work_ns, paused_ns)))
                soonest_ns = pace.soonest_ns(behind_ns, ready_ns)
                if soonest_ns > request.deadline_ns:
                    ready_ns = int(caught_up_ns(shorter_ns, work_ns))
                    if pace.soonest_ns(shorter_ns, ready_ns) <= request.deadline_ns:
                        return True
                elif soonest_ns <= queue.soonest_ns():
                    break  # so are all before it
                place = place // 2 if place else -1
        return False

    def _starts_ns(self, pace: Pace, target_id: str, free_ns: int) -> list[int]:
        """`Pace.starts_ns`, with a target that is free only at a time."""
        starts_ns = pace.starts_ns(self._outlook)
        at = pace.ids.index(target_id)
        starts_ns[at] = max(starts_ns[at], free_ns)
        return starts_ns

    def _work_ahead_ns(self, request: Request, pace: Pace) -> float:
        """How long the targets of a queued request need for what is ahead of it, as learned."""
        work_ns = 0.0
        for queue, other in self._lanes:
            ahead = queue.count_ahead(request)
            if ahead:
                work_ns += ahead * other.share_ns(len(queue)) * pace.part(other)
        return work_ns * max(1.0, self.caution.factor(pace, request.weight, request.priority))

    def backlog_ns(self, pace: Pace) -> float:
        """How long a class's targets together need for the backlog, in full batches.

        Of each class only what all targets take at once counts: the rest waits, as what comes does.
        """
        return fsum(
            [
                min(len(queue), each.at_once) * each.cost_ns * pace.part(each)
                for queue, each in self._lanes
            ]
        )

    def counter_offers(self, requests: Sequence[Request]) -> list[dict[str, int]]:
        """The smallest budgets found with which requests like these would be admitted without them.

        Returns:
            For each request, that budget by the targets that could meet it. Requests alike in
            class, priority and weight share one.
        """
        self.look()
        alike: dict[tuple[RequestClass, int, float], list[Request]] = {}
        for each in requests:
            alike.setdefault((each.kind, each.priority, each.weight), []).append(each)
        offers: dict[int, dict[str, int]] = {}
        for group in alike.values():
            last = max(group, key=order)
            offer = self._offer(last, last.deadline_ns, len(group))
            offers.update((each.id, offer) for each in group)
        return [offers[each.id] for each in requests]

    def _offer(self, request: Request, deadline_ns: int, besides: int = 1) -> dict[str, int]:
        """The budget that a request like a queued one would need in its place.

        Args:
            request: The queued request that it would replace.
            deadline_ns: The deadline to try first.
            besides: How many requests of its class leave, including `request`.
        """
        now_ns = self._outlook.view.now_ns
        kind, priority, weight = request.kind, request.priority, request.weight
        pace = self._paces[kind]
        starts_ns = pace.starts_ns(self._outlook)
        for attempt in range(_TRIES + 1):
            if attempt == _TRIES:
                deadline_ns = max(deadline_ns, self._last_ns(priority))
            asked = Request(_NEWEST, kind, deadline_ns, priority, weight)
            ready_ns = self._ready_ns(asked, pace, starts_ns, besides, imagined=True)
            done_ns = pace.done_ns(starts_ns, ready_ns)
            if min(done_ns) <= deadline_ns:
                break
            deadline_ns = min(done_ns)
        return {
            target_id: deadline_ns - now_ns
            for target_id, ns in zip(pace.ids, done_ns, strict=True)
            if ns <= deadline_ns
        }

    def _last_ns(self, priority: int) -> int:
        """The last deadline of a priority; a later one puts nothing more ahead of a request."""
        levels = [queue.level(priority) for queue, _ in self._lanes]
        return max([level[-1].deadline_ns for level in levels if level], default=0)

    # -- learning

    def broken(self, dropped: Iterable[Request]) -> None:
        """Learns that admitted requests have to be dropped."""
        lost = [(self.pace(each.kind), each.weight, each.priority) for each in dropped]
        self.caution.broken(self._outlook.view.now_ns, lost)

    def served(self, place: Place) -> None:
        """Learns that a batch is sent whose requests will be in time."""
        self.caution.kept(len(place.requests), self._missed(place))

    def idled(self) -> None:
        """Learns what targets with nothing to do could have had in time since the last call."""
        view = self._outlook.view
        since_ns, self._looked_ns = self._looked_ns, view.now_ns
        if not self._refused:
            return
        idle = [
            target
            for target in view.targets.values()
            if not target.runs and target.up and not (target.spec.is_dear or target.spec.peer)
        ]
        if idle:
            self._forget_refused(since_ns)
        for target in idle:
            self._refusals_in_vain(target, max(since_ns, target.last_done_ns))

    def _forget_refused(self, due_ns: int) -> None:
        """Forgets refused requests that were due before a time: they would only cost time."""
        for kind, refused in list(self._refused.items()):
            _drop_due(refused, due_ns)
            if not refused:
                del self._refused[kind]

    def _refusals_in_vain(self, target: TargetState, begin_ns: int) -> None:
        """Counts and forgets the refused requests for which a target had time since `begin_ns`."""
        count, now_ns = 0, self._outlook.view.now_ns
        for kind, refused in self._refused.items():
            for bid in self._outlook.bids(kind) if refused else ():
                if bid.target is not target:
                    continue
                one_ns = bid.alone_ns()
                for deadline_ns in sorted(refused):
                    if begin_ns + one_ns > now_ns:
                        break
                    if begin_ns + one_ns <= deadline_ns:
                        begin_ns += one_ns
                        refused.remove(deadline_ns)
                        count += 1
        if count:
            self.caution.idled(count)

    def _missed(self, place: Place) -> int:
        """How many refused requests would have made the batch larger, with more throughput."""
        kind = place.requests[0].kind
        refused = self._refused.get(kind)
        if not refused:
            return 0
        _drop_due(refused, self._outlook.view.now_ns)
        bid = next(b for b in self._outlook.bids(kind) if b.target_id == place.target_id)
        ladder = bid.target.curve(place.offer, kind).ladder(bid.quantile)
        sizes, count = ladder.sizes, len(place.requests)
        larger = bisect_right(sizes, count)
        if larger == len(sizes):
            return 0
        larger_ns = ladder.latency_ns[larger]
        done_ns = self._outlook.starts_ns[place.target_id] + larger_ns
        if done_ns > min([request.deadline_ns for request in place.requests]):
            return 0
        fitting = [deadline_ns for deadline_ns in refused if deadline_ns >= done_ns]
        fitting = fitting[: sizes[larger] - count]
        rate = count / ladder.latency_ns[bisect_left(sizes, count)]
        if count + len(fitting) < WORTHWHILE * rate * larger_ns:
            return 0
        for deadline_ns in fitting:
            refused.remove(deadline_ns)
        return len(fitting)

    def _remember(self, refused: Request) -> None:
        remembered = self._refused.get(refused.kind)
        if remembered is None:
            make_room(self._refused)
            remembered = self._refused[refused.kind] = deque(maxlen=REFUSED)
        remembered.append(refused.deadline_ns)


def _length(lane: tuple[ClassQueue, Pace]) -> int:
    return len(lane[0])


def _drop_due(deadlines_ns: deque[int], due_ns: int) -> None:
    """Drops the oldest deadlines that are before a time."""
    while deadlines_ns and deadlines_ns[0] < due_ns:
        deadlines_ns.popleft()

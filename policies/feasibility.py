"""Questions that several policies ask: what can still be in time, and what can't any more."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.core.offers import Offer
from scheduler.core.policy import Drop, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.targets import TargetState


def doomed(view: View, quantile: float) -> Iterator[Drop]:
    """Drops the queued requests that no target can finish in time any more.

    A request whose caller accepts late results is never doomed: it may be served as long as
    its deadline has not passed.
    """
    for kind in list(view.queues):
        finishes = view.earliest_finish_ns(kind, quantile)
        if not finishes:
            continue
        earliest_ns = min(finishes.values())
        queue = view.queues[kind]
        for request in queue.due(earliest_ns):
            if not request.accept_late:
                late_ms = (earliest_ns - request.deadline_ns) / 1e6
                budgets = {name: ns - view.now_ns for name, ns in finishes.items()}
                yield Drop(request, f"would be {late_ms:.1f} ms late at the earliest", budgets)


def queues_for(view: View, target: TargetState) -> list[tuple[ClassQueue, list[Offer]]]:
    """The waiting classes that a target can serve, with its offers for each."""
    return [
        (queue, offers) for kind, queue in view.queues.items() if (offers := target.usable(kind))
    ]


def late_welcome(view: View, target: TargetState) -> Place | None:
    """A batch of requests that will be late, for a target that has nothing else to do.

    Only requests whose callers accept late results are left in the queues past the point where
    they could be in time, once `doomed` was carried out.
    """
    for queue, offers in queues_for(view, target):
        offer = offers[0]
        one_ns = target.free_ns(view.now_ns) + view.predict_ns(target, offer, 1, 0.5)
        waiting = [r for r in queue.due(one_ns) if r.accept_late]
        if waiting:
            size = max(b for b in target.curve(offer).batch_sizes if b <= len(waiting))
            return Place(target.spec.id, offer, tuple(waiting[:size]), "late, as the caller allows")
    return None

"""In which form a batch's inputs travel to a target: unchanged, if that is in time.

A result in time is worth the same however early it is, and a smaller form loses information for
good. So a smaller form is used only for a batch that would be late without it.
"""

from __future__ import annotations

from scheduler.core.forms import Form
from scheduler.core.policy import Hedge, Place, Policy, View, quantile_of
from scheduler.core.targets import TargetState


def form_for(place: Place | Hedge, target: TargetState, view: View, policy: Policy) -> Form | None:
    """The form in which to send a batch; None to send it unchanged.

    A batch is sent unchanged if all callers that want their results in time then get them.
    Otherwise it takes the first form in the owner's order with which they do, or the quickest if
    none is quick enough. A batch whose callers all accept late results is never made smaller merely
    because it is late anyway.

    Args:
        place: The batch.
        target: Where it is sent.
        view: The scheduler's state.
        policy: The policy whose latency quantile is used.
    """
    requests, spec = place.requests, target.spec
    forms = spec.forms_for(requests[0].kind)
    start_ns = view.start_ns(target)
    if not forms or start_ns is None:
        return None
    size = sum([request.size_bytes for request in requests])
    quantile = quantile_of(policy)
    done_ns = start_ns + view.predict_ns(
        target, place.offer, len(requests), quantile, requests[0].kind
    )
    strict = [request.deadline_ns for request in requests if not request.accept_late]
    due_ns = min(strict or [request.deadline_ns for request in requests])
    ways = [(spec.carry_ns(size, form), form) for form in (None, *forms)]
    for way_ns, form in ways:
        if done_ns + way_ns <= due_ns:
            return form
    return min(ways, key=lambda way: way[0])[1] if strict else None

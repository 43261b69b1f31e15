"""In which form the inputs of a batch travel to a target: as they are, if that is in time.

A result that is in time is worth the same however early it is, and what a smaller form has taken
from the inputs never comes back. So a smaller form is only for a batch that would be late without.
"""

from __future__ import annotations

from scheduler.core.forms import Form
from scheduler.core.policy import Hedge, Place, Policy, View, quantile_of
from scheduler.core.targets import TargetState


def form_for(place: Place | Hedge, target: TargetState, view: View, policy: Policy) -> Form | None:
    """The form in which a batch is to be sent; None for as it is.

    As it is, if all who want their results in time then have them; otherwise the first form in
    the owner's order with which they have, or the quickest where none is quick enough. What
    nobody wants in time is never made smaller because it is late anyway.

    Args:
        place: The batch.
        target: Where it is sent.
        view: What is known now.
        policy: Whose quantile of latency is counted on.
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

"""Errors for deadlines that passed or that were too short."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from scheduler.client.call import Call
from scheduler.core.figures import figure
from scheduler.errors import DeadlineExpired, DeadlineInfeasible, LaxityError, Unavailable


def expired(call: Call, url: str, way_ns: float, lost: str, waited: str) -> LaxityError:
    """The error for an unanswered call whose deadline has passed.

    Args:
        call: The call.
        url: The box's URL.
        way_ns: How long the round trip takes by itself.
        lost: Why the last connection was lost.
        waited: Why it was still waiting here; empty if nothing is known to have kept it.
    """
    budget_ms = (call.deadline_ns - call.submitted_ns) / 1e6
    detail = {"budget_ms": budget_ms}
    if not call.is_infer:
        return Unavailable(f"{url} did not answer within {figure(budget_ms / 1e3)} s", detail)
    if call.sends and call.connection is None:
        where = f"the connection to {url} was lost: {lost}"
    elif call.sends:
        where = f"no answer from {url}"
    elif waited:
        where = f"it waited here, because {waited}"
    elif budget_ms <= way_ns / 1e6:
        where = f"the round trip to {url} takes {figure(way_ns / 1e6)} ms by itself"
    else:
        where = "it was not sent yet, because this process was busy"
    return DeadlineExpired(f"the deadline of {budget_ms:.12g} ms passed; {where}", detail)


def too_late(call: Call, now_ns: int) -> DeadlineExpired:
    """The error for a call whose result came after its deadline and is not wanted late."""
    late_ms = (now_ns - call.deadline_ns) / 1e6
    budget_ms = (call.deadline_ns - call.submitted_ns) / 1e6
    return DeadlineExpired(
        f"the result came {round(late_ms, 3):.12g} ms after the deadline of {budget_ms:.12g} ms "
        "(accept_late=True would have delivered it)",
        {"budget_ms": budget_ms, "late_ms": late_ms},
    )


def in_callers_terms(
    error: DeadlineInfeasible, budget_for: Callable[[float], float]
) -> DeadlineInfeasible:
    """Converts a counter-offer to what its caller has to ask for.

    Args:
        error: The refusal; its offers are changed.
        budget_for: The budget to ask for, in ms, so that one of a number of ms is left.
    """
    offers = error.detail.get("earliest_budget_ms")
    if isinstance(offers, dict):
        error.detail["earliest_budget_ms"] = {
            at: ceil(budget_for(ms) * 1e3) / 1e3 for at, ms in offers.items()
        }
    return error


def lost_ns(call: Call, round_trip_ns: int) -> int:
    """What a call's budget loses before it counts at the box, and on the way back.

    The wait here counts twice, since the next call's may be longer, but at most as long as the
    round trip: that of a call that found no connection says nothing about the next.
    """
    waited_ns = call.sent_ns - call.submitted_ns
    return round_trip_ns + min(2 * waited_ns, round_trip_ns)

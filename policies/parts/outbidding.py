"""Which requests make room for one that is worth more, in the same class and priority.

Requests of one class are served by priority and deadline, whatever they are worth. So under
overload the first to arrive would be served, and a heavier one behind them refused. It is admitted
instead if it would be in time without some lighter requests of its class and priority ahead of it
that together are worth less. Their callers are told at once.
"""

from __future__ import annotations

from math import inf

from policies.parts.admission import Admission
from policies.parts.outlook import Outlook
from policies.parts.remembering import make_room
from policies.parts.serving import order
from scheduler.core.policy import Drop
from scheduler.core.requests import Request, RequestClass

MOST = 8
"""The most requests that are given up for one."""


class Outbidding:
    """Finds the requests that make room.

    Args:
        outlook: Gives access to the queues.
        admission: Tells which requests would be in time.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Starts before any arrival."""
        self._outlook = outlook
        self._admission = admission
        self._lightest: dict[RequestClass, float] = {}

    def admitted(self, request: Request) -> None:
        """Records that a request was admitted."""
        kind, lightest = request.kind, self._lightest
        if request.weight < lightest.get(kind, inf):
            make_room(lightest)
            lightest[kind] = request.weight

    def outbid(self, request: Request) -> list[Drop]:
        """The requests to drop in favour of an arrival that would be refused; usually none."""
        kind, weight = request.kind, request.weight
        if weight <= self._lightest.get(kind, inf):
            return []
        queue = self._outlook.view.queues[kind]
        lighter, lightest, own_order = [], inf, order(request)
        for other in queue.level(request.priority):
            lightest = min(lightest, other.weight)
            if order(other) < own_order and other.weight < weight and not other.accept_late:
                lighter.append(other)
        self._lightest[kind] = lightest
        lighter.sort(key=_weight)
        worth = 0.0
        for count, other in enumerate(lighter[:MOST], 1):
            worth += other.weight
            if worth >= weight:
                break
            if self._admission.has_room(request, count):
                gone = lighter[:count]
                why = f"gives way to one of weight {weight:g} that came; its own is "
                offers = self._admission.counter_offers(gone)
                return [
                    Drop(each, f"{why}{each.weight:g}", budgets)
                    for each, budgets in zip(gone, offers, strict=True)
                ]
        return []


def _weight(request: Request) -> float:
    return request.weight

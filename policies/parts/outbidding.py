"""Who makes room for a request that is worth more: of two that are served alike, the heavier one.

Requests of one class are served by priority and deadline, whatever they are worth. So under
overload those that came first would be served, and a heavier one be refused behind them. It is
admitted instead where lighter ones of its class and priority that are ahead of it are worth less
together than it is, and it would be in time without them. They hear so at once.
"""

from __future__ import annotations

from math import inf

from policies.parts.admission import Admission
from policies.parts.outlook import Outlook
from policies.parts.serving import order
from scheduler.core.policy import Drop
from scheduler.core.requests import Request, RequestClass

MOST = 8
"""So many are given up for one at most."""

_KINDS = 200
"""Classes whose weights are remembered though they may not come again."""


class Outbidding:
    """Finds those who make room.

    Args:
        outlook: What waits.
        admission: Knows who would be in time.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Has seen nothing come."""
        self._outlook = outlook
        self._admission = admission
        self._lightest: dict[RequestClass, float] = {}

    def admitted(self, request: Request) -> None:
        """A request waits now."""
        kind, lightest = request.kind, self._lightest
        if request.weight < lightest.get(kind, inf):
            if len(lightest) >= _KINDS:
                lightest.clear()
            lightest[kind] = request.weight

    def outbid(self, request: Request) -> list[Drop]:
        """Those who are given up for a queued arrival that was to be refused; mostly nobody."""
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

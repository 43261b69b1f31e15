"""Which queued requests would find no place in time: a plan that is kept while it holds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import islice

from policies.parts.outlook import Outlook
from policies.parts.plan import HORIZON, Course, in_order
from policies.parts.serving import order
from scheduler.core.policy import View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass


class Foresight:
    """The plan of some targets (`parts.plan`) from one event to the next.

    A plan takes time in proportion to what is queued. Most events are arrivals, which change only
    what comes after them; so the plan is taken back to there, and made anew from there.

    Args:
        outlook: What the targets could do.
    """

    def __init__(self, outlook: Outlook) -> None:
        """Starts without a plan."""
        self._outlook = outlook
        self._course = Course(outlook)
        self._ahead: list[Request] = []
        self._known: dict[RequestClass, tuple[ClassQueue, int, int]] = {}

    def unplaced(self) -> list[Request]:
        """The requests without a place in time, including those that may be late.

        The `look` of the outlook must have been called. Don't modify the list.
        """
        same = self._line_up(self._outlook.view)
        if not self._course.holds():
            self._course = Course(self._outlook)
        course, ahead = self._course, self._ahead
        while len(course.added) > same:
            course.undo()
        for request in islice(ahead, len(course.added), None):
            course.add(request)
        return course.plan.unplaced

    def cramping(self) -> list[Request]:
        """As in `Plan`, when `unplaced` was last called."""
        return self._course.plan.cramping()

    def _line_up(self, view: View) -> int:
        """Updates the first of the queued requests, in order; returns how many are as before."""
        arrivals, before = view.arrivals, self._ahead
        if self._only_came(view, arrivals):
            same = len(before)
            for request in arrivals:
                place = bisect_left(before, order(request), key=order)
                before.insert(place, request)
                same = min(same, place)
            del before[HORIZON:]
        else:
            self._ahead = list(islice(in_order(view), HORIZON))
            same = _same(before, self._ahead)
        self._known = {kind: (q, q.removed, len(q)) for kind, q in view.queues.items()}
        return same

    def _only_came(self, view: View, arrivals: list[Request]) -> bool:
        """Whether nothing but these arrivals has changed the queues."""
        came = Counter([request.kind for request in arrivals])
        fresh = 0
        for kind, queue in view.queues.items():
            count = came[kind]
            if kind not in self._known:
                fresh += 1
                known, removed, length = queue, 0, 0
            else:
                known, removed, length = self._known[kind]
            if known is not queue or queue.removed != removed or len(queue) != length + count:
                return False
        return len(view.queues) == len(self._known) + fresh


def _same(before: list[Request], now: list[Request]) -> int:
    """How many requests are the same at the beginning of both lists."""
    same = 0
    for old, new in zip(before, now, strict=False):
        if old is not new:
            break
        same += 1
    return same

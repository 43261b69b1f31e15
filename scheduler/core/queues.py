"""The queued requests of one class, in the order in which they should be served."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from scheduler.core.requests import Request, RequestClass

_id = attrgetter("id")


class _Level:
    """The requests of one priority, ordered by (deadline, id).

    Attributes:
        priority: Their priority.
        deadlines_ns: Their deadlines, in a parallel list: bisecting numbers is faster than tuples.
        requests: The requests.
    """

    __slots__ = ("deadlines_ns", "priority", "requests")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.deadlines_ns: list[int] = []
        self.requests: list[Request] = []

    def place(self, request: Request) -> int:
        """The position of a request, or where it would be inserted."""
        deadlines, deadline_ns = self.deadlines_ns, request.deadline_ns
        if not deadlines or deadlines[-1] < deadline_ns:
            return len(deadlines)
        at = bisect_left(deadlines, deadline_ns)
        if deadlines[at] != deadline_ns or self.requests[at].id >= request.id:
            return at
        end = bisect_right(deadlines, deadline_ns, at)
        return bisect_left(self.requests, request.id, at, end, key=_id)

    def due(self, before_ns: int, from_ns: int) -> list[Request]:
        """The requests with a deadline from `from_ns` to just before `before_ns`."""
        deadlines = self.deadlines_ns
        return self.requests[bisect_left(deadlines, from_ns) : bisect_left(deadlines, before_ns)]


class ClassQueue:
    """The requests of one class, ordered by (priority, deadline, id).

    There are sorted lists for each priority, of which there are few. Removal is exact rather than
    lazy: moving the tail of a list of 1,000 entries costs less than skipping dead entries at every
    look-up.

    Attributes:
        kind: The class.
        removed: How many requests have left the queue.
    """

    def __init__(self, kind: RequestClass) -> None:
        """Starts empty."""
        self.kind = kind
        self.removed = 0
        self._levels: list[_Level] = []  # by priority; none is empty
        self._by_age: OrderedDict[int, Request] = OrderedDict()
        self._is_in_order = True

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, request: Request) -> bool:
        return self._by_age.get(request.id) is request

    def __iter__(self) -> Iterator[Request]:
        """The requests in order of service; don't change the queue while iterating."""
        return chain.from_iterable([level.requests for level in self._levels])

    def _place(self, priority: int) -> int:
        """The position of a priority, or where it would be inserted."""
        at = 0
        for level in self._levels:
            if level.priority >= priority:
                break
            at += 1
        return at

    def push(self, request: Request) -> None:
        """Adds a request; of equal deadlines, the lower id comes first."""
        levels, place = self._levels, self._place(request.priority)
        if place == len(levels) or levels[place].priority != request.priority:
            levels.insert(place, _Level(request.priority))
        level = levels[place]
        at = level.place(request)
        level.deadlines_ns.insert(at, request.deadline_ns)
        level.requests.insert(at, request)
        self._by_age[request.id] = request

    def remove(self, request: Request) -> None:
        """Removes a request, wherever it is in the queue.

        Raises:
            KeyError: It is not in this queue.
        """
        del self._by_age[request.id]
        self.removed += 1
        place = self._place(request.priority)
        level = self._levels[place]
        at = level.place(request)
        del level.deadlines_ns[at], level.requests[at]
        if not level.requests:
            del self._levels[place]

    def head(self) -> Request:
        """The request to serve first."""
        return self._levels[0].requests[0]

    def nth(self, place: int) -> Request:
        """The request at a place in the order of service, from 0.

        Raises:
            IndexError: The queue has fewer requests.
        """
        for level in self._levels:
            if place < len(level.requests):
                return level.requests[place]
            place -= len(level.requests)
        raise IndexError(place)

    def by_age(self) -> Iterator[Request]:
        """The requests in the order they came; don't change the queue while iterating."""
        if not self._is_in_order:
            self._by_age = OrderedDict(sorted(self._by_age.items()))
            self._is_in_order = True
        return iter(self._by_age.values())

    def sort_by_age(self) -> None:
        """Has `by_age` sort first, because a request was pushed that is not the newest."""
        self._is_in_order = False

    def first(self, count: int, after_ns: int = 0) -> list[Request]:
        """The first `count` requests in order whose deadline is at `after_ns` or later."""
        found: list[Request] = []
        for level in self._levels:
            deadlines = level.deadlines_ns
            at = 0 if deadlines[0] >= after_ns else bisect_left(deadlines, after_ns)
            found += level.requests[at : at + count - len(found)]
            if len(found) == count:
                break
        return found

    def soonest_ns(self) -> int:
        """The earliest deadline in the queue."""
        soonest_ns = self._levels[0].deadlines_ns[0]
        for level in self._levels:
            if level.deadlines_ns[0] < soonest_ns:
                soonest_ns = level.deadlines_ns[0]
        return soonest_ns

    def soonest_from(self, from_ns: int) -> int | None:
        """The earliest deadline at `from_ns` or later; None if there is none."""
        soonest_ns: int | None = None
        for level in self._levels:
            deadlines = level.deadlines_ns
            at = bisect_left(deadlines, from_ns)
            if at < len(deadlines) and (soonest_ns is None or deadlines[at] < soonest_ns):
                soonest_ns = deadlines[at]
        return soonest_ns

    def due(self, before_ns: int, from_ns: int = 0) -> list[Request]:
        """The requests with a deadline from `from_ns` to just before `before_ns`."""
        found: list[Request] = []
        for level in self._levels:
            found += level.due(before_ns, from_ns)
        return found

    def count_ahead(self, request: Request) -> int:
        """How many requests here are served before a request, which may be in another queue."""
        own, ahead = request.priority, 0
        for level in self._levels:
            if level.priority > own:
                break
            ahead += level.place(request) if level.priority == own else len(level.requests)
        return ahead

    def count_to(self, priority: int) -> int:
        """How many requests have this priority or a more urgent one, i.e. a number not above it."""
        count = 0
        for level in self._levels:
            if level.priority > priority:
                break
            count += len(level.requests)
        return count

    def level(self, priority: int) -> Sequence[Request]:
        """The requests of one priority, ascending by (deadline, id); don't modify them."""
        found = [level.requests for level in self._levels if level.priority == priority]
        return found[0] if found else ()

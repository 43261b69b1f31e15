"""Waiting requests of one class, in the order in which they should be served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain

from scheduler.core.requests import Request, RequestClass

Entry = tuple[int, int, Request]
"""Deadline in nanoseconds, id, request."""


class ClassQueue:
    """The requests of one class, by (priority, deadline, id).

    One sorted list per priority. Removal is exact rather than lazy: moving the tail of a list
    of 1,000 entries costs less than skipping over dead ones at every look.
    """

    def __init__(self, kind: RequestClass) -> None:
        """Starts empty."""
        self.kind = kind
        self._levels: dict[int, list[Entry]] = {}
        self._by_age: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, request: Request) -> bool:
        return self._by_age.get(request.id) is request

    def __iter__(self) -> Iterator[Request]:
        """The requests in the order of service; don't change the queue meanwhile."""
        return (entry[2] for entry in chain.from_iterable(self._in_order()))

    def _in_order(self) -> Iterator[list[Entry]]:
        return (self._levels[priority] for priority in sorted(self._levels))

    def push(self, request: Request) -> None:
        """Adds a request; the ids say in which order requests came."""
        level = self._levels.get(request.priority)
        if level is None:
            level = self._levels[request.priority] = []
        insort(level, (request.deadline_ns, request.id, request))
        self._by_age[request.id] = request

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it stands.

        Raises:
            KeyError: It is not here.
        """
        del self._by_age[request.id]
        level = self._levels[request.priority]
        del level[bisect_left(level, (request.deadline_ns, request.id))]
        if not level:
            del self._levels[request.priority]

    def head(self) -> Request:
        """The request to be served first."""
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            return level[0][2]
        return self._levels[min(self._levels)][0][2]

    def by_age(self) -> Iterator[Request]:
        """The requests in order of arrival; don't change the queue meanwhile."""
        return iter(self._by_age.values())

    def first(self, count: int, after_ns: int = 0) -> list[Request]:
        """The first `count` requests in order whose deadline is at `after_ns` or later."""
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            at = 0 if level[0][0] >= after_ns else bisect_left(level, (after_ns,))
            return [entry[2] for entry in level[at : at + count]]
        found: list[Request] = []
        for level in self._in_order():
            at = bisect_left(level, (after_ns,)) if after_ns else 0
            found += [entry[2] for entry in level[at : at + count - len(found)]]
            if len(found) == count:
                break
        return found

    def soonest_ns(self) -> int:
        """The earliest deadline in the queue."""
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            return level[0][0]
        return min([level[0][0] for level in self._levels.values()])

    def due(self, before_ns: int, from_ns: int = 0) -> list[Request]:
        """The requests whose deadline is before one time, and not before another."""
        return [
            entry[2]
            for level in self._in_order()
            for entry in level[bisect_left(level, (from_ns,)) : bisect_left(level, (before_ns,))]
        ]

    def count_ahead(self, request: Request) -> int:
        """How many are served before a request, which may wait in another queue."""
        own = request.priority
        level = self._levels.get(own)
        ahead = bisect_left(level, (request.deadline_ns, request.id)) if level else 0
        if not level or len(self._levels) > 1:
            ahead += sum([len(each) for prior, each in self._levels.items() if prior < own])
        return ahead

    def count_to(self, priority: int) -> int:
        """How many are as important as a priority, or more."""
        if len(self._levels) == 1 and priority in self._levels:
            return len(self._by_age)
        return sum([len(each) for prior, each in self._levels.items() if prior <= priority])

    def level(self, priority: int) -> Sequence[Entry]:
        """The requests of one priority as (deadline, id, request), ascending; to be read only."""
        return self._levels.get(priority, ())

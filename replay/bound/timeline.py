"""What changes over time: the price of device time, and how many requests could share a batch."""

from __future__ import annotations

import numpy as np

from replay.bound.model import Floats, Ints


class LeastOver:
    """Finds where an array is least over ranges of it, for thousands of ranges at once."""

    def __init__(self, values: Floats) -> None:
        """Tabulates where every range whose length is a power of two is least."""
        self._values = values
        self._levels: list[Ints] = [np.arange(len(values))]
        width = 1
        while 2 * width <= len(values):
            left, right = self._levels[-1][:-width], self._levels[-1][width:]
            self._levels.append(np.where(values[left] <= values[right], left, right))
            width *= 2

    def index(self, first: Ints, last: Ints) -> Ints:
        """Where `values[first..last]` is least, both included; -1 for an empty range."""
        index = np.full(len(first), -1)
        length = last - first + 1
        level = np.full(len(first), -1)
        some = length > 0
        level[some] = np.frexp(length[some].astype(np.float64))[1] - 1
        for power, table in enumerate(self._levels):
            at = np.flatnonzero(level == power)
            if len(at):
                left, right = table[first[at]], table[last[at] + 1 - (1 << power)]
                index[at] = np.where(self._values[left] <= self._values[right], left, right)
        return index

    def __call__(self, first: Ints, last: Ints) -> Floats:
        """The least of `values[first..last]`, both included; infinite for an empty range."""
        index = self.index(first, last)
        least: Floats = np.append(self._values, np.inf)[index]
        return least


class Prices:
    """The price of a nanosecond of a place's time, over time; 0 before and after all edges.

    Args:
        edges_ns: The times at which the price changes, ascending; at least two.
        price: The price from each edge to the next, 0 or more.

    Attributes:
        free: Whether all time is free.
    """

    def __init__(self, edges_ns: Ints, price: Floats) -> None:
        """Adds the free time at either end."""
        self._edges_ns = edges_ns
        self._price = np.concatenate(([0.0], price, [0.0]))
        self._paid = np.concatenate(([0.0], np.cumsum(price * np.diff(edges_ns))))
        self._least = LeastOver(self._price)
        self.free = not np.any(price)

    def least(self, from_ns: Ints, until_ns: Ints) -> Floats:
        """The least price of a nanosecond within each window; windows are not empty."""
        first = np.searchsorted(self._edges_ns, from_ns, side="right")
        last = np.searchsorted(self._edges_ns, until_ns, side="left")
        least: Floats = self._least(first, last)
        return least

    def _paid_until(self, at_ns: Ints) -> Floats:
        """The price of all time until each moment."""
        index = np.searchsorted(self._edges_ns, at_ns, side="right")
        begin_ns = self._edges_ns[np.clip(index - 1, 0, None)]
        whole = self._paid[np.clip(index - 1, 0, None)]
        paid: Floats = whole + self._price[index] * (at_ns - begin_ns)
        return paid

    def run(self, begin_ns: Ints, length_ns: int) -> Floats:
        """The price of a stretch of this length from each start."""
        return self._paid_until(begin_ns + length_ns) - self._paid_until(begin_ns)

    def least_run(
        self, first_ns: Ints, last_ns: Ints, length_ns: int, company: Company
    ) -> tuple[Floats, Ints]:
        """The least price per request of a stretch with a start from first to last, and that start.

        Its price is shared by as many requests as `company` gives for its start. The price is
        piecewise linear in the start, with corners where either end of the stretch is at an edge.
        Between two changes of the company it is least at such a corner or at a change, where there
        are no fewer to share it than to either side.
        """
        ends_ns = self._edges_ns[:, None] - np.array([0, length_ns])
        corners_ns = np.unique(np.concatenate((ends_ns.reshape(-1), company.changes_ns())))
        inner = LeastOver(self.run(corners_ns, length_ns) / company.at(corners_ns)).index(
            np.searchsorted(corners_ns, first_ns, side="left"),
            np.searchsorted(corners_ns, last_ns, side="right") - 1,
        )
        begins_ns = np.stack((first_ns, last_ns, np.where(inner < 0, first_ns, corners_ns[inner])))
        bills = self.run(begins_ns, length_ns) / company.at(begins_ns)
        choice = np.argmin(bills, axis=0)[None]
        best: Floats = np.take_along_axis(bills, choice, 0)[0]
        return best, np.take_along_axis(begins_ns, choice, 0)[0]


class Company:
    """How many requests of a class could be in one batch that starts at a given time.

    They have arrived by then, and would be in time.

    Args:
        at_ns: The arrivals of all requests of the class.
        deadline_ns: Their deadlines.
        known_from_ns: Requests with deadlines up to this time may be missing; batches before it
            count as full.
        length_ns: The least time from a request's arrival to the return of its result.
        shift_ns: How long after that arrival the batch starts.
        size: The most requests in a batch.
    """

    def __init__(
        self,
        at_ns: Ints,
        deadline_ns: Ints,
        known_from_ns: int | None,
        length_ns: int,
        shift_ns: int,
        size: int,
    ) -> None:
        """Sorts the requests that could be in such a batch at all."""
        enough = deadline_ns - at_ns >= length_ns
        self._first_ns = np.sort(at_ns[enough]) + shift_ns
        self._last_ns = np.sort(deadline_ns[enough]) - length_ns + shift_ns
        self._known_from_ns = None if known_from_ns is None else known_from_ns + shift_ns
        self._size = size
        self._fewest = LeastOver(-self.at(self._first_ns))

    def changes_ns(self) -> Ints:
        """When the number changes, apart from the change at `known_from_ns`."""
        if self._size == 1:
            return self._first_ns[:0]
        changes_ns: Ints = np.concatenate((self._first_ns, self._last_ns))
        return changes_ns

    def at(self, begin_ns: Ints) -> Floats:
        """The number for batches with the given starts; at least 1, at most the size."""
        begun = np.searchsorted(self._first_ns, begin_ns, side="right")
        ended = np.searchsorted(self._last_ns, begin_ns, side="left")
        together: Floats = np.clip(begun - ended, 1, self._size).astype(np.float64)
        if self._known_from_ns is not None:
            together[begin_ns < self._known_from_ns] = self._size
        return together

    def most(self, first_ns: Ints, last_ns: Ints) -> Floats:
        """The most for any start from first to last; the number only rises at arrivals."""
        inner = -self._fewest(
            np.searchsorted(self._first_ns, first_ns, side="left"),
            np.searchsorted(self._first_ns, last_ns, side="right") - 1,
        )
        most: Floats = np.maximum(inner, self.at(first_ns))
        return most

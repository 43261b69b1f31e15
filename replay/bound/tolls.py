"""What requests pay for the links on their way, at given prices of the links' time."""

from __future__ import annotations

import numpy as np

from replay.bound.bids import Requests
from replay.bound.model import Fleet, Floats

_BLOCKS = 64
"""The most blocks of time with a price of their own, on each link."""


class Tolls:
    """The links of a fleet.

    A request that travels over a link in its window occupies it for a certain time, in one or two
    blocks of time, since blocks are no shorter than windows. So it pays at least that time at the
    cheaper price of the two. A link takes no more in each block than the time that there is.

    Prices are for as much time as the mean request takes.

    Args:
        fleet: The fleet.
        found: The requests.

    Attributes:
        scarce: The links that can't carry everything.
        room: How many mean requests each link carries in each block, at most; the price of each
            has the same index.
    """

    def __init__(self, fleet: Fleet, found: Requests) -> None:
        """Divides the time between the first arrival and the last deadline into blocks."""
        from_ns = int(np.min(found.at_ns))
        span_ns = int(np.max(found.deadline_ns)) - from_ns
        window_ns = max(1, int(np.max(found.deadline_ns - found.at_ns)))
        blocks = min(max(1, span_ns // window_ns), _BLOCKS)
        edges_ns = from_ns - (-span_ns // blocks) * np.arange(blocks + 1)
        first = np.searchsorted(edges_ns[1:-1], found.at_ns, side="right")
        last = np.searchsorted(edges_ns[1:-1], found.deadline_ns, side="left")
        self._blocks = np.stack((first, np.maximum(first, last)))
        taken_ns = [link.taken_ns(found.size_bytes) for link in fleet.links]
        means_ns = [max(1.0, float(np.mean(each_ns))) for each_ns in taken_ns]
        spans_ns = [np.diff(edges_ns) + link.spare_ns for link in fleet.links]
        self.room: Floats = np.concatenate((np.empty(0), *map(np.divide, spans_ns, means_ns)))
        self.scarce = [
            link
            for link, (each_ns, span_ns) in enumerate(zip(taken_ns, spans_ns, strict=True))
            if np.sum(each_ns) > np.sum(span_ns)
        ]
        self._taken = list(map(np.divide, taken_ns, means_ns))
        self._of_place = [place.link for place in fleet.places]
        self._count = blocks

    @property
    def free(self) -> Floats:
        """The prices at which links cost nothing."""
        return np.zeros(len(self.room))

    def at(self, prices: Floats, link: int, price: float) -> Floats:
        """The prices, with that of all of a link's time replaced."""
        changed: Floats = prices.copy()
        changed[link * self._count : (link + 1) * self._count] = price
        return changed

    def least(self, place: int, prices: Floats) -> Floats | float:
        """The least that each request pays on the way to a place."""
        link = self._of_place[place]
        if link is None:
            return 0.0
        paid: Floats = np.min(self._ahead(link, prices), axis=0) * self._taken[link]
        return paid

    def used(self, place: int, prices: Floats, served: Floats) -> Floats:
        """How much of each link's room is used if each request is served so often in a place."""
        used = np.zeros(len(prices))
        link = self._of_place[place]
        if link is not None:
            cheaper = np.argmin(self._ahead(link, prices), axis=0)
            block = np.take_along_axis(self._blocks, cheaper[None], axis=0)[0]
            taken = np.bincount(block, served * self._taken[link], self._count)
            used[link * self._count : (link + 1) * self._count] = taken
        return used

    def _ahead(self, link: int, prices: Floats) -> Floats:
        own: Floats = prices[link * self._count : (link + 1) * self._count][self._blocks]
        return own

"""Requests as columns, and what one option can do for many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replay.bound.model import Floats, Ints, Option
from replay.bound.timeline import Company, Prices
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as columns."""

    at_ns: Ints
    deadline_ns: Ints
    kind: Ints
    worth: Floats
    size_bytes: Ints

    def where(self, chosen: Ints | NDArray[np.bool_]) -> Requests:
        """The requests that a mask or an array of indices selects."""
        return Requests(
            self.at_ns[chosen],
            self.deadline_ns[chosen],
            self.kind[chosen],
            self.worth[chosen],
            self.size_bytes[chosen],
        )

    @property
    def spans(self) -> tuple[Ints, Ints, Ints]:
        """What `Option.windows` needs to know."""
        return self.at_ns, self.deadline_ns, self.size_bytes

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            np.concatenate((self.at_ns, other.at_ns)),
            np.concatenate((self.deadline_ns, other.deadline_ns)),
            np.concatenate((self.kind, other.kind)),
            np.concatenate((self.worth, other.worth)),
            np.concatenate((self.size_bytes, other.size_bytes)),
        )

    @classmethod
    def of(
        cls, arrivals: Sequence[Arrival], weighted: bool, kinds: dict[RequestClass, int]
    ) -> Requests:
        """Arrivals as columns; `kinds` gets a number for each class that it doesn't have yet."""
        at_ns = np.array([arrival.at_ns for arrival in arrivals], np.int64)
        budget_ns = np.array([arrival.budget_ns for arrival in arrivals], np.int64)
        kind = [kinds.setdefault(arrival.kind, len(kinds)) for arrival in arrivals]
        worth = [arrival.weight if weighted else 1.0 for arrival in arrivals]
        size_bytes = [arrival.size_bytes for arrival in arrivals]
        return cls(
            at_ns,
            at_ns + budget_ns,
            np.array(kind, np.int64),
            np.array(worth, np.float64),
            np.array(size_bytes, np.int64),
        )


NOBODY = Requests.of((), False, {})


class Bid:
    """One option for many requests of a class.

    Attributes:
        place: Index of the place.
        rows: The requests that it can serve at all; the other arrays have an entry for each.
        first_ns: The earliest time at which a batch with the request can start.
        end_ns: The latest time at which device time is of use to the request.
        price_ns: The least device time per success of a batch.
        cost_ns: The same, shared by the most requests that a batch can hold.
    """

    def __init__(
        self, option: Option, own: Requests, kin: Requests, known_from_ns: int | None = None
    ) -> None:
        """Takes the requests, and all of their class (`kin`) that could share a batch with them."""
        first_ns, last_ns, end_ns = option.windows(*own.spans)
        self.place = option.place
        self.rows = np.flatnonzero(last_ns >= first_ns)
        self.first_ns = first_ns[self.rows]
        self.last_ns = last_ns[self.rows]
        self._least_ns = option.least_ns
        self.end_ns = np.minimum(end_ns[self.rows], self.last_ns + option.longest_ns)
        length_ns = option.least_ns + option.out_ns + option.back_ns
        self._company = Company(
            kin.at_ns, kin.deadline_ns, known_from_ns, length_ns, option.out_ns, option.size
        )
        self.price_ns = option.prices(end_ns[self.rows] - self.first_ns)
        self.cost_ns = self.price_ns / self._company.most(self.first_ns, self.last_ns)

    def bill(self, prices: Prices) -> tuple[Floats, Ints]:
        """The least cost per success of a batch with each request, and when that batch starts."""
        if prices.free:
            return np.zeros(len(self.rows)), self.first_ns
        anywhere = self.cost_ns * prices.least(self.first_ns, self.end_ns)
        at_once, begin_ns = prices.least_run(
            self.first_ns, self.last_ns, self._least_ns, self._company
        )
        return np.maximum(anywhere, at_once), begin_ns

    def shared(self, begin_ns: Ints) -> Floats:
        """Device time per success for batches that start at the given times, one for each row."""
        shared: Floats = self.price_ns / self._company.at(begin_ns)
        return shared

    def corners_ns(self) -> Ints:
        """The first and last starts and ends of batches, and those one batch further inside."""
        lengths_ns = np.arange(3).reshape(-1, 1) * self._least_ns
        first_ns = self.first_ns + lengths_ns
        last_ns = self.last_ns + self._least_ns - lengths_ns
        return np.concatenate((first_ns.reshape(-1), last_ns.reshape(-1)))

"""A good clairvoyant schedule, which knows all future requests, by simulated annealing.

A bound limits the optimum from above; this schedule limits it from below. Service times are
deterministic: the only sample of each offer.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

from replay.simulator import Arrival
from scheduler.core.target_specs import TargetSpec

HOT, COLD = 0.4, 0.05
"""The first and the last temperature, in requests."""

_LONG_AGO = -(1 << 62)

Ladder = tuple[tuple[int, ...], tuple[int, ...]]
"""Ascending batch sizes, and the time that each takes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a schedule; all its riders are in time.

    Attributes:
        riders: Its requests; they take as long as the next measured size.
        begin_ns: When it starts.
        end_ns: When it is done.
    """

    riders: tuple[int, ...]
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Change:
    """A device's sequence from an index on, as it was before a move."""

    device: int
    first: int
    before: list[Batch]


class Annealing:
    """A schedule, and the moves that change it.

    Args:
        arrivals: The workload.
        fleet: Devices that run one batch at a time, with one variant of each model.
        seed: Seeds all randomness.

    Attributes:
        value: The number of requests in time.
    """

    def __init__(self, arrivals: Sequence[Arrival], fleet: Sequence[TargetSpec], seed: int) -> None:
        """Start with an empty schedule."""
        self.value = 0
        self._chance = random.Random(seed)
        self._come_ns = [arrival.at_ns for arrival in arrivals]
        self._due_ns = [arrival.at_ns + arrival.budget_ns for arrival in arrivals]
        self._model = [arrival.kind.model for arrival in arrivals]
        self._ladders: list[dict[str, Ladder]] = [
            {
                offer.model: (
                    tuple(sorted(offer.latency_ns)),
                    tuple(offer.latency_ns[size][0] for size in sorted(offer.latency_ns)),
                )
                for offer in spec.offers
            }
            for spec in fleet
        ]
        self._devices: list[list[Batch]] = [[] for _ in fleet]
        self._able = {
            model: [at for at, ladders in enumerate(self._ladders) if model in ladders]
            for model in {offer.model for spec in fleet for offer in spec.offers}
        }
        self._idle = [at for at, model in enumerate(self._model) if model in self._able]
        self._changes: list[_Change] = []
        self._ejected: list[int] = []

    def take(self, device: int, riders: Iterable[int]) -> None:
        """Append a batch to a device's sequence, without the riders that would be late."""
        fresh = tuple(riders)
        self.value += self._replace(device, len(self._devices[device]), 0, [fresh])
        self._settle(fresh)

    def improve(self, moves: int) -> int:
        """Make a number of moves, and return the most requests in time after any of them."""
        best = self.value
        for move in range(moves):
            heat = HOT * (COLD / HOT) ** (move / moves)
            self._move(heat)
            best = max(best, self.value)
        return best

    # -- moves

    def _move(self, heat: float) -> None:
        """Move some requests of one model elsewhere, or reject the move."""
        chance = self._chance
        gained = 0
        if self._idle and chance.random() < 0.6:
            movers: tuple[int, ...] = (chance.choice(self._idle),)
        else:
            device = chance.randrange(len(self._devices))
            if not self._devices[device]:
                return
            at = chance.randrange(len(self._devices[device]))
            riders = self._devices[device][at].riders
            movers = tuple(chance.sample(riders, chance.randint(1, len(riders))))
            rest = tuple(rider for rider in riders if rider not in movers)
            gained += self._replace(device, at, 1, [rest])
        gained += self._insert(chance.choice(self._able[self._model[movers[0]]]), movers)
        if gained >= 0 or chance.random() < exp(gained / heat):
            self.value += gained
            self._settle(movers)
        else:
            for change in reversed(self._changes):
                self._devices[change.device][change.first :] = change.before
            self._changes.clear()
            self._ejected.clear()

    def _insert(self, device: int, movers: tuple[int, ...]) -> int:
        """Insert requests into a batch of their model, or as a new batch; return the gain."""
        chance, sequence = self._chance, self._devices[device]
        sizes, _ = self._ladders[device][self._model[movers[0]]]
        come_ns = max(self._come_ns[mover] for mover in movers)
        due_ns = min(self._due_ns[mover] for mover in movers)
        low = bisect_right(sequence, come_ns, key=lambda batch: batch.end_ns)
        high = max(low, bisect_right(sequence, due_ns, key=lambda batch: batch.begin_ns))
        if chance.random() < 0.6:
            fitting = [
                at
                for at in range(max(0, low - 1), high)
                if self._model[sequence[at].riders[0]] == self._model[movers[0]]
                and len(sequence[at].riders) + len(movers) <= sizes[-1]
            ]
            if fitting:
                at = chance.choice(fitting)
                return self._replace(device, at, 1, [sequence[at].riders + movers])
        at = chance.randint(low, high)
        over = int(at < len(sequence) and chance.random() < 0.3)
        if over:
            self._ejected += sequence[at].riders
        return self._replace(device, at, over, [movers])

    def _replace(
        self, device: int, first: int, count: int, fresh: Iterable[tuple[int, ...]]
    ) -> int:
        """Replace batches by others, and shift those that follow; return the gain."""
        sequence = self._devices[device]
        self._changes.append(_Change(device, first, sequence[first:]))
        free_ns = sequence[first - 1].end_ns if first else _LONG_AGO
        gained = -sum(len(batch.riders) for batch in sequence[first : first + count])
        after: list[Batch] = []
        for riders in fresh:
            free_ns, more = self._begin(device, riders, free_ns, after)
            gained += more
        follows = first + count
        while follows < len(sequence):
            batch = sequence[follows]
            if max(free_ns, self._ready_ns(batch.riders)) == batch.begin_ns:
                break
            free_ns, more = self._begin(device, batch.riders, free_ns, after)
            gained += more - len(batch.riders)
            follows += 1
        sequence[first:follows] = after
        return gained

    def _begin(
        self, device: int, riders: tuple[int, ...], free_ns: int, after: list[Batch]
    ) -> tuple[int, int]:
        """Start a batch without riders that would be late; return its end and how many count."""
        if not riders:
            return free_ns, 0
        sizes, times_ns = self._ladders[device][self._model[riders[0]]]
        self._ejected += riders[sizes[-1] :]
        riders = riders[: sizes[-1]]
        while riders:
            begin_ns = max(free_ns, self._ready_ns(riders))
            end_ns = begin_ns + times_ns[bisect_left(sizes, len(riders))]
            late = [rider for rider in riders if self._due_ns[rider] < end_ns]
            if not late:
                after.append(Batch(riders, begin_ns, end_ns))
                return end_ns, len(riders)
            out = late[-1]
            if len(riders) > 1 and self._chance.random() < 0.3:
                out = max(riders, key=self._come_ns.__getitem__)
            self._ejected.append(out)
            riders = tuple(rider for rider in riders if rider != out)
        return free_ns, 0

    def _ready_ns(self, riders: tuple[int, ...]) -> int:
        return max([self._come_ns[rider] for rider in riders])

    def _settle(self, movers: Iterable[int]) -> None:
        """Update the requests that are not served, after an accepted move."""
        idle = set(self._idle).difference(movers).union(self._ejected)
        self._idle = sorted(idle)
        self._changes.clear()
        self._ejected.clear()

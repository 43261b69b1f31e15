"""A closed loop: clients that each wait for an answer before they ask again.

How often they ask depends on how soon they are answered, so a workload of theirs is known only
while it is played.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from replay.workloads.amounts import Amount, Fixed
from replay.workloads.mix import Arrival, Mix

TURN_NS = 100_000
"""What a client takes at least from an answer to its next request, as a real one does: one that is
refused at once would ask for ever at the same moment."""


_NO_THINKING = Fixed(0.0)


@dataclass(frozen=True, slots=True)
class ClientStream:
    """Requests of clients that wait for their answers.

    Attributes:
        clients: How many.
        mix: What they ask for.
        think_ms: How long each waits besides, before its first request too.
    """

    clients: int
    mix: Mix
    think_ms: Amount = _NO_THINKING


class Clients(Iterator[Arrival]):
    """The next request of who has waited long enough; it ends where nobody will ask now.

    Args:
        stream: Who asks, and for what.
        seed: Same seed and same answers, same requests.
        base_ns: By model the latency of one request alone.
        end_ns: From when on nobody asks; None is never.
        most: How many requests they send at most; None is no limit.

    Attributes:
        out: How many of them wait for an answer.
    """

    def __init__(
        self,
        stream: ClientStream,
        seed: int | str,
        base_ns: Mapping[str, int] | None = None,
        end_ns: int | None = None,
        most: int | None = None,
    ) -> None:
        """None has asked yet."""
        self.out = 0
        self._chance = random.Random(f"{seed} think")
        self._think = stream.think_ms
        self._end_ns = end_ns
        self._left = most
        self._due_ns = [self._thought_ns() for _ in range(stream.clients)]
        heapify(self._due_ns)
        self._made = stream.mix.arrivals(self._times(), random.Random(f"{seed} mix"), base_ns)

    def next_ns(self) -> int | None:
        """When the next request is due, as far as is known by now; None if none is."""
        if not self._due_ns or self._left == 0:
            return None
        due_ns = self._due_ns[0]
        return due_ns if self._end_ns is None or due_ns < self._end_ns else None

    def __next__(self) -> Arrival:
        """Sends that request."""
        if self.next_ns() is None:
            raise StopIteration
        self.out += 1
        if self._left is not None:
            self._left -= 1
        return next(self._made)

    def answered(self, at_ns: int) -> None:
        """Tells one of them that its request has ended, however it did."""
        self.out -= 1
        heappush(self._due_ns, at_ns + TURN_NS + self._thought_ns())

    def _times(self) -> Iterator[int]:
        while True:
            yield heappop(self._due_ns)

    def _thought_ns(self) -> int:
        return round(self._think.draw(self._chance) * 1e6)

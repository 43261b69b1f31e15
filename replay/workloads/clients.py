"""A closed loop: each client waits for an answer before it sends the next request.

How often clients ask depends on how soon they are answered, so their requests are known only while
the workload is played.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from replay.simulator import Arrival
from replay.workloads.amounts import Amount, Fixed
from replay.workloads.mix import Mix

TURN_NS = 100_000
"""The least time that a client takes from an answer to its next request, as a real client does.
Without it, a client refused at once would ask for ever at the same moment."""


_NO_THINKING = Fixed(0.0)


@dataclass(frozen=True, slots=True)
class ClientStream:
    """Requests from clients that wait for their answers.

    Attributes:
        clients: Number of clients.
        mix: What they ask for.
        think_ms: How long each also pauses before a request, including its first.
    """

    clients: int
    mix: Mix
    think_ms: Amount = _NO_THINKING


class Clients(Iterator[Arrival]):
    """The next request of whichever client is due first; it ends when no client is ready to ask.

    Args:
        stream: The clients and what they ask for.
        seed: The same seed and the same answers give the same requests.
        base_ns: Per model, the latency of one request alone.
        end_ns: No client asks from this time on; None is never.
        most: The most requests sent in total; None is no limit.

    Attributes:
        out: Number of clients waiting for an answer.
    """

    def __init__(
        self,
        stream: ClientStream,
        seed: int | str,
        base_ns: Mapping[str, int] | None = None,
        end_ns: int | None = None,
        most: int | None = None,
    ) -> None:
        """Begins before the first request."""
        self.out = 0
        self._chance = random.Random(f"{seed} think")
        self._think = stream.think_ms
        self._end_ns = end_ns
        self._left = most
        self._due_ns = [self._thought_ns() for _ in range(stream.clients)]
        heapify(self._due_ns)
        self._made = stream.mix.arrivals(self._times(), random.Random(f"{seed} mix"), base_ns)

    def next_ns(self) -> int | None:
        """When the next request is due, as far as is known now; None if none is."""
        if not self._due_ns or self._left == 0:
            return None
        due_ns = self._due_ns[0]
        return due_ns if self._end_ns is None or due_ns < self._end_ns else None

    def __next__(self) -> Arrival:
        """Sends the next request."""
        if self.next_ns() is None:
            raise StopIteration
        self.out += 1
        if self._left is not None:
            self._left -= 1
        return next(self._made)

    def answered(self, at_ns: int) -> None:
        """Records that a client's request has ended, in whatever way."""
        self.out -= 1
        heappush(self._due_ns, at_ns + TURN_NS + self._thought_ns())

    def _times(self) -> Iterator[int]:
        while True:
            yield heappop(self._due_ns)

    def _thought_ns(self) -> int:
        return round(self._think.draw(self._chance) * 1e6)

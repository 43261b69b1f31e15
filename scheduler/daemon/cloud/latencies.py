"""How long a server takes for each batch size of a model, apart from the way there."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

import structlog

from scheduler.core.belief import FIRST_NS, longer_ns
from scheduler.core.offers import Offer
from scheduler.daemon.cloud.tensors import CloudModel
from scheduler.files import replace_file

log = structlog.get_logger()

SAMPLES = 32
"""Latencies kept per batch size."""

_ENOUGH = 3
"""So many batches of a size make it a measured one."""

_NEXT = 1.9
"""What a batch size twice the largest measured one is taken to cost, as a multiple of that: a
little less than twice as much, so that it is tried when work piles up, and measured then."""

MATERIAL = 0.25
"""An offer is made anew when a median has moved by more than this share."""

RUNTIME = "oip"


class _Size:
    """What is known of one batch size.

    Attributes:
        samples: How long such batches took; the oldest give way.
        seen_ns: When the last one came.
        believed_ns: For how long it is believed that it is slow.
    """

    __slots__ = ("believed_ns", "samples", "seen_ns")

    def __init__(self, samples: Iterable[int], now_ns: int) -> None:
        self.samples = deque(samples, SAMPLES)
        self.seen_ns = now_ns
        self.believed_ns = FIRST_NS

    @property
    def is_measured(self) -> bool:
        return len(self.samples) >= _ENOUGH

    def is_slower(self, guessed: Sequence[int]) -> bool:
        """Whether it looks so slow that nobody has a reason to try it."""
        return self.is_measured and _median(self.samples) > _median(guessed)

    def is_stale(self, now_ns: int) -> bool:
        """Whether what it looks like was not seen for as long as it is believed."""
        return now_ns - self.seen_ns >= self.believed_ns

    def forget(self) -> None:
        """It is as if it had not been measured, and if it is slow indeed is believed for longer."""
        self.samples.clear()
        self.believed_ns = longer_ns(self.believed_ns)


class Latencies:
    """What is known of one model at one server.

    Batches grow as they are learned: the sizes that were measured are offered, and the next. One
    that was measured in a bad moment is taken for unmeasured after a while, or nobody would try it
    again.

    Args:
        model: The model.
        known: Latencies in nanoseconds by batch size, from an earlier time.
        clock_ns: The monotonic clock.
    """

    def __init__(
        self,
        model: CloudModel,
        known: Mapping[int, Iterable[int]],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Knows what was known."""
        self.model = model
        self._clock_ns = clock_ns
        self._sizes = {1: _Size(known.get(1, ()), clock_ns())}
        size = 2
        while size <= model.max_batch:
            self._sizes[size] = _Size(known.get(size, ()), clock_ns())
            size *= 2
        self._largest = max(self._sizes)
        self._most = inf
        self._offered: dict[int, int] = {}
        self._back_ns = 0

    def refuse(self, size: int) -> None:
        """Offers only smaller batches than those of so many items, 2 or more, from now on."""
        self._largest = min(self._largest, size // 2)

    def allow_all(self) -> None:
        """Takes back what was refused."""
        self._largest = max(self._sizes)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self._sizes[1].samples)

    def observe(self, size: int, latency_ns: int) -> None:
        """Learns from a batch."""
        known = self._sizes[size]
        known.samples.append(max(1, latency_ns))
        known.seen_ns = self._clock_ns()

    @property
    def median_ns(self) -> int:
        """The median of single items; 0 where nothing is known."""
        return _median(self._sizes[1].samples) if self.is_known else 0

    def confirm(self, latency_ns: int) -> None:
        """Learns from a single item that was tried because of what the slowest have taken.

        The slowest gives way to one that took a good deal less: alone among few it decides what is
        refused, and what is refused says nothing.
        """
        samples = self._sizes[1].samples
        slowest_ns = max(samples, default=0)
        if latency_ns <= (1 - MATERIAL) * slowest_ns:
            samples.remove(slowest_ns)
        self.observe(1, latency_ns)

    def start_over(self, latencies_ns: Iterable[int]) -> None:
        """Forgets all but what single items have just taken."""
        for known in self._sizes.values():
            known.samples.clear()
        for latency_ns in latencies_ns:
            self.observe(1, latency_ns)

    def longest_ns(self, size: int) -> int:
        """The longest that was lately seen, of that size or the next smaller one that was."""
        for smaller, known in reversed(self._sizes.items()):
            if smaller <= size and known.samples:
                return max(known.samples) * size // smaller
        return 0

    def offer(self, back_ns: int, most: float = inf) -> Offer:
        """What it can be counted on for from now on, with the way back, in batches up to a size."""
        self._most = most
        ladder = {1: tuple(sorted(self._sizes[1].samples))}
        for size, known, guessed in self._above(ladder):
            if known.is_slower(guessed):
                if known.is_stale(self._clock_ns()):
                    known.forget()
            elif known.is_measured:
                known.believed_ns = FIRST_NS
            ladder[size] = tuple(sorted(known.samples)) if known.is_measured else guessed
        self._offered = {size: _median(samples) for size, samples in ladder.items()}
        self._back_ns = back_ns
        there_and_back = {
            size: tuple([sample + back_ns for sample in samples])
            for size, samples in ladder.items()
        }
        return Offer(self.model.card.name, self.model.variant, RUNTIME, there_and_back)

    def _above(
        self, ladder: Mapping[int, tuple[int, ...]]
    ) -> Iterator[tuple[int, _Size, tuple[int, ...]]]:
        """The sizes above 1 that may be offered, each with what the one below lets expect."""
        measured = max([size for size, known in self._sizes.items() if known.is_measured] or [1])
        for size, known in self._sizes.items():
            if 1 < size <= min(self._largest, self._most, 2 * measured):
                yield size, known, tuple([int(_NEXT * sample) for sample in ladder[size // 2]])

    def moved(self) -> bool:
        """Whether the last offer is no longer true enough."""
        for size, offered_ns in self._offered.items():
            known = self._sizes[size]
            if not known.is_measured:
                continue
            apart_ns = abs(_median(known.samples) - offered_ns)
            if apart_ns > MATERIAL * (offered_ns + self._back_ns):
                return True
            larger = 2 * size
            if larger <= min(self._largest, self._most) and larger not in self._offered:
                return True
            half_ns = self._offered.get(size // 2)
            if half_ns and offered_ns > _NEXT * half_ns and known.is_stale(self._clock_ns()):
                return True
        return False

    def measured(self) -> dict[int, list[int]]:
        """The latencies by batch size."""
        return {size: list(known.samples) for size, known in self._sizes.items() if known.samples}


def _median(samples: Iterable[int]) -> int:
    ordered = sorted(samples)
    return ordered[len(ordered) // 2]


class LatencyFile:
    """What was learned of a server, kept for the next start.

    Args:
        path: The file.
        url: The server; what was learned of another one under the same name is not used.
    """

    def __init__(self, path: Path, url: str) -> None:
        """Reads nothing yet."""
        self._path = path
        self._url = url

    def read(self) -> dict[str, dict[int, list[int]]]:
        """Latencies by model, as `Latencies.measured` gives them; empty without a usable file."""
        try:
            said = json.loads(self._path.read_text())
            if said["url"] != self._url:
                return {}
            return {
                model: {int(size): list(map(int, samples)) for size, samples in sizes.items()}
                for model, sizes in said["models"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("latencies are measured anew", file=str(self._path), error=repr(error))
            return {}

    def write(self, latencies: Iterable[Latencies]) -> None:
        """Keeps what was learned; a file that can't be written is said, and costs a measurement."""
        models = {each.model.card.name: each.measured() for each in latencies}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"url": self._url, "models": models}))
        except OSError as error:
            log.warning("latencies can't be kept", file=str(self._path), error=str(error))

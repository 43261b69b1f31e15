"""Latencies of a server per model and batch size, without the time on the way."""

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
"""A batch size counts as measured after this many batches."""

_NEXT = 1.9
"""Assumed latency of a batch twice the largest measured size, relative to that size: a little less
than double, so that it is tried when work piles up, and thereby measured."""

MATERIAL = 0.25
"""An offer is renewed when a median has moved by more than this share."""

RUNTIME = "oip"


class _Size:
    """The latencies of one batch size.

    Attributes:
        samples: The latest latencies.
        seen_ns: When the last one was added.
        believed_ns: How long the size is believed to be slow without a new sample.
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
        """Whether it seems slower than the guess, so that no policy would try it."""
        return self.is_measured and _median(self.samples) > _median(guessed)

    def is_stale(self, now_ns: int) -> bool:
        """Whether the last sample is older than samples are believed."""
        return now_ns - self.seen_ns >= self.believed_ns

    def forget(self) -> None:
        """Discards the samples; if the size proves slow again, that is believed for longer."""
        self.samples.clear()
        self.believed_ns = longer_ns(self.believed_ns)


class Latencies:
    """The latencies of one model at one server.

    Batches grow as latencies are learned: the measured sizes are offered, and the next one. A size
    that seems slow counts as unmeasured again after a while: it may have been measured at a bad
    moment, and nothing would try it again.

    Args:
        model: The model.
        known: Latencies in nanoseconds by batch size, measured earlier.
        clock_ns: The monotonic clock.
    """

    def __init__(
        self,
        model: CloudModel,
        known: Mapping[int, Iterable[int]],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Starts from the known latencies."""
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
        """Offers only sizes below this refused one, which is 2 or more, from now on."""
        self._largest = min(self._largest, max(each for each in self._sizes if each < size))

    def allow_all(self) -> None:
        """Offers all batch sizes again."""
        self._largest = max(self._sizes)

    @property
    def is_known(self) -> bool:
        """Whether there is a latency to offer."""
        return bool(self._sizes[1].samples)

    def size_for(self, count: int) -> int:
        """The size that a batch of so many items counts as: the next that is not below.

        The largest, if it was sent when the model had larger ones.
        """
        return min([size for size in self._sizes if size >= count], default=max(self._sizes))

    def observe(self, count: int, latency_ns: int) -> None:
        """Learns from a finished batch of so many items."""
        known = self._sizes[self.size_for(count)]
        known.samples.append(max(1, latency_ns))
        known.seen_ns = self._clock_ns()

    @property
    def median_ns(self) -> int:
        """The median of single items; 0 if there is none yet."""
        return _median(self._sizes[1].samples) if self.is_known else 0

    def confirm(self, latency_ns: int) -> None:
        """Learns from a single item that was tried because of slow samples.

        If it was much faster than the slowest sample, it replaces that sample: among few samples
        the slowest decides what is refused, and refused requests yield no new samples.
        """
        samples = self._sizes[1].samples
        slowest_ns = max(samples, default=0)
        if latency_ns <= (1 - MATERIAL) * slowest_ns:
            samples.remove(slowest_ns)
        self.observe(1, latency_ns)

    def start_over(self, latencies_ns: Iterable[int]) -> None:
        """Replaces all samples with those of single items just measured."""
        for known in self._sizes.values():
            known.samples.clear()
        for latency_ns in latencies_ns:
            self.observe(1, latency_ns)

    def longest_ns(self, size: int) -> int:
        """The longest recent latency of so many items, scaled from a smaller size if need be."""
        if samples := self._sizes[self.size_for(size)].samples:
            return max(samples)
        for smaller, known in reversed(self._sizes.items()):
            if smaller <= size and known.samples:
                return max(known.samples) * size // smaller
        return 0

    def offer(self, back_ns: int, most: float = inf) -> Offer:
        """A new offer, whose latencies include the way back, with batches of at most `most`."""
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
        """The sizes above 1 that may be offered, each with a guess from the size below."""
        measured = max([size for size, known in self._sizes.items() if known.is_measured] or [1])
        for size, known in self._sizes.items():
            if 1 < size <= min(self._largest, self._most, 2 * measured):
                yield size, known, tuple([int(_NEXT * sample) for sample in ladder[size // 2]])

    def moved(self) -> bool:
        """Whether the last offer has become too inaccurate."""
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
        """The samples by batch size."""
        return {size: list(known.samples) for size, known in self._sizes.items() if known.samples}


def _median(samples: Iterable[int]) -> int:
    ordered = sorted(samples)
    return ordered[len(ordered) // 2]


class LatencyFile:
    """Keeps the latencies of a server for the next start.

    Args:
        path: The file.
        url: The server; latencies of another server under the same name are ignored.
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
        """Writes the latencies; a failure is logged, and costs a measurement at the next start."""
        models = {each.model.card.name: each.measured() for each in latencies}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"url": self._url, "models": models}))
        except OSError as error:
            log.warning("latencies can't be kept", file=str(self._path), error=str(error))

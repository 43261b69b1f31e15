"""How long a server takes for each batch size of a model, apart from the way there."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path

import structlog

from scheduler.core.offers import Offer
from scheduler.daemon.cloud.tensors import CloudModel

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


class Latencies:
    """What is known of one model at one server.

    Batches grow as they are learned: the sizes that were measured are offered, and the next.

    Args:
        model: The model.
        known: Latencies in nanoseconds by batch size, from an earlier time.
    """

    def __init__(self, model: CloudModel, known: Mapping[int, Iterable[int]]) -> None:
        """Knows what was known."""
        self.model = model
        self._sizes = [1]
        while 2 * self._sizes[-1] <= model.max_batch:
            self._sizes.append(2 * self._sizes[-1])
        self._samples: dict[int, deque[int]] = {
            size: deque(known.get(size, ()), SAMPLES) for size in self._sizes
        }
        self._largest = self._sizes[-1]
        self._most = inf
        self._offered: dict[int, int] = {}
        self._back_ns = 0

    def refuse(self, size: int) -> None:
        """Offers only smaller batches than those of so many items, 2 or more, from now on."""
        self._largest = min(self._largest, size // 2)

    def allow_all(self) -> None:
        """Takes back what was refused."""
        self._largest = self._sizes[-1]

    @property
    def is_known(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self._samples[1])

    def observe(self, size: int, latency_ns: int) -> None:
        """Learns from a batch."""
        self._samples[size].append(max(1, latency_ns))

    @property
    def median_ns(self) -> int:
        """The median of single items; 0 where nothing is known."""
        return _median(self._samples[1]) if self._samples[1] else 0

    def start_over(self, latencies_ns: Iterable[int]) -> None:
        """Forgets all but what single items have just taken."""
        for samples in self._samples.values():
            samples.clear()
        for latency_ns in latencies_ns:
            self.observe(1, latency_ns)

    def longest_ns(self, size: int) -> int:
        """The longest that was lately seen, of that size or the next smaller one that was."""
        for known in sorted(self._samples, reverse=True):
            if known <= size and self._samples[known]:
                return max(self._samples[known]) * size // known
        return 0

    def offer(self, back_ns: int, most: float = inf) -> Offer:
        """What it can be counted on for from now on, with the way back, in batches up to a size."""
        self._most = most
        ladder = {1: tuple(sorted(self._samples[1]))}
        for size in self._sizes[1:]:
            if size > min(self._largest, most):
                break
            samples = self._samples[size]
            if len(samples) < _ENOUGH:
                ladder[size] = tuple([int(_NEXT * sample) for sample in ladder[size // 2]])
                break
            ladder[size] = tuple(sorted(samples))
        self._offered = {size: _median(samples) for size, samples in ladder.items()}
        self._back_ns = back_ns
        there_and_back = {
            size: tuple([sample + back_ns for sample in samples])
            for size, samples in ladder.items()
        }
        return Offer(self.model.card.name, self.model.variant, RUNTIME, there_and_back)

    def moved(self) -> bool:
        """Whether the last offer is no longer true enough."""
        for size, offered_ns in self._offered.items():
            samples = self._samples[size]
            if len(samples) < _ENOUGH:
                continue
            apart_ns = abs(_median(samples) - offered_ns)
            if apart_ns > MATERIAL * (offered_ns + self._back_ns):
                return True
            larger = 2 * size
            if larger <= min(self._largest, self._most) and larger not in self._offered:
                return True
        return False

    def measured(self) -> dict[int, list[int]]:
        """The latencies by batch size."""
        return {size: list(samples) for size, samples in self._samples.items() if samples}


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
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"url": self._url, "models": models}))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("latencies can't be kept", file=str(self._path), error=str(error))

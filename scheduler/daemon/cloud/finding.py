"""Finds out which of the box's models a server runs, and how fast at first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.backoff import Backoff
from scheduler.config.cloud import CloudConfig
from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING
from scheduler.daemon.cloud.endpoint import Endpoint, Fault, Inference, RemoteError
from scheduler.daemon.cloud.latencies import MATERIAL, Latencies
from scheduler.daemon.cloud.tensors import CloudModel, agreed, split, stacked
from scheduler.daemon.cloud.till import Till
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.meter import WayMeter
from scheduler.encodings.codec import accepted
from scheduler.encodings.text import ENCODING_EXTENSION
from scheduler.wire import body_bytes
from workers.link import ModelCard

_TRIALS = 4
"""Number of inferences that first measure a model; the slowest is discarded."""

_FIRST_LOOK_NS, _LONGEST_LOOK_NS = 1_000_000_000, 60_000_000_000
"""First and longest pause between checks for models that a server did not have."""

_OF_ALL = frozenset((Fault.UNREACHABLE, Fault.SILENT, Fault.UNKNOWN_CALLER))
"""Faults that concern the whole server, not just the model that was asked about."""

_ANSWERED = frozenset((Fault.GONE, Fault.INVALID, Fault.UNKNOWN_CALLER, Fault.REFUSED))
"""Faults with which a server answers a probe all the same: it does not know the call, or limits how
often it is asked."""

_PROBES = 5
"""Number of round trips measured first."""


@dataclass
class FoundModels:
    """The box's models at a server.

    Attributes:
        latencies: The latencies of the models that it runs, by name.
        problems: The models that it should run but does not, and why.
    """

    latencies: dict[str, Latencies] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)


class Finder:
    """Examines one server.

    Args:
        config: The server's configuration.
        endpoint: The server.
        meter: Measures the way to it.
        till: Pays for trials.

    Attributes:
        settled_ns: When the payment for the trial in flight will be settled at the latest; 0 while
            there is none.
    """

    def __init__(
        self, config: CloudConfig, endpoint: Endpoint, meter: WayMeter, till: Till
    ) -> None:
        """Contacts nothing yet."""
        self.settled_ns = 0
        self._config = config
        self._endpoint = endpoint
        self._meter = meter
        self._till = till

    async def find(
        self,
        cards: Mapping[str, ModelCard],
        known: dict[str, dict[int, list[int]]],
    ) -> FoundModels:
        """Finds out which models the server runs, and measures those with unknown latency.

        Args:
            cards: The models of the box.
            known: Latencies measured earlier; new measurements are added.

        Raises:
            RemoteError: The server can't be reached, or runs none of the models.
        """
        for _ in range(_PROBES):
            await self.probe(self._config.timeout_s)
        found = FoundModels()
        undone = await self._undone(cards)
        for card in list(cards.values()):  # the box may get more meanwhile
            latencies = await self._measured(card, found, undone, known.get(card.name, {}))
            if latencies is not None:
                found.latencies[card.name] = latencies
                known[card.name] = latencies.measured()
        for name in self._config.models or ():
            if name not in cards:
                found.problems.append((name, "the box has no model of that name"))
        if not found.latencies:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in found.problems)
            text = reasons or "none of its models has the name of one of the box's"
            raise RemoteError(Fault.GONE, f"the server runs none of the box's models ({text})")
        return found

    async def keep_finding(
        self,
        missing: Callable[[], Iterable[ModelCard]],
        on_looked: Callable[[str, FoundModels], None],
    ) -> None:
        """Checks now and then for models that were missing, until cancelled.

        A server that comes back may load its models one after the other, and a box gets new ones.

        Args:
            missing: Returns the models to look for.
            on_looked: Called for each of them, with what was found.
        """
        pause = Backoff(_FIRST_LOOK_NS, _LONGEST_LOOK_NS)
        while True:
            await asyncio.sleep(pause.next_ns() / 1e9)
            for card in missing():
                found = FoundModels()
                try:
                    undone = await self._undone({card.name: card})
                    latencies = await self._measured(card, found, undone, {})
                except RemoteError:
                    break  # probes and batches handle server faults
                if latencies is not None:
                    pause.reset()
                    found.latencies[card.name] = latencies
                on_looked(card.name, found)

    async def probe(self, timeout_s: float, alone: bool = True) -> None:
        """Measures a round trip.

        Args:
            timeout_s: How long it may take.
            alone: Whether no large message is in flight; if one is, the time is not recorded.

        Raises:
            RemoteError: No answer came.
        """
        started_ns = time.monotonic_ns()
        try:
            await self._endpoint.live(timeout_s)
        except RemoteError as error:
            if error.fault not in _ANSWERED:
                self._meter.lost()
                raise
        if alone:
            self._meter.round_trip(time.monotonic_ns() - started_ns)

    async def _undone(self, cards: Mapping[str, ModelCard]) -> frozenset[str]:
        """The names of the input encodings that this box can make and the server can undo."""
        if not any(card.approximates for card in cards.values()):
            return frozenset()
        if self._config.encoding == "json":  # JSON can't carry encoded inputs
            return frozenset()
        try:
            said = await self._endpoint.extensions(self._config.timeout_s)
        except RemoteError as error:
            if error.fault in (Fault.UNREACHABLE, Fault.SILENT):
                raise
            return frozenset()  # a server that does not know this call
        return frozenset(name for name in accepted() if ENCODING_EXTENSION + name in said)

    async def _model(
        self, card: ModelCard, found: FoundModels, undone: frozenset[str]
    ) -> CloudModel | None:
        name = self._config.remote_name(card.name)
        if name is None:
            return None
        try:
            there = await self._endpoint.model(name, self._config.timeout_s)
            return agreed(card, there, self._config.max_batch, undone)
        except RemoteError as error:
            if error.fault in _OF_ALL:
                raise
            if error.fault is not Fault.GONE or self._config.models is not None:
                found.problems.append((card.name, str(error)))
        except ValueError as error:
            found.problems.append((card.name, str(error)))
        return None

    async def _measured(
        self,
        card: ModelCard,
        found: FoundModels,
        undone: frozenset[str],
        known: Mapping[int, list[int]],
    ) -> Latencies | None:
        """The latencies of a model, measured if unknown; None if the model can't be used."""
        model = await self._model(card, found, undone)
        if model is None:
            return None
        latencies = Latencies(model, known)
        try:
            await self._measure(latencies)
        except (RemoteError, ValueError) as error:
            found.problems.append((card.name, f"it can't be measured: {error}"))
            return None
        return latencies

    async def _measure(self, latencies: Latencies) -> None:
        if latencies.is_known:
            return
        if self._config.expected_ms is not None:
            latencies.observe(1, int(self._config.expected_ms * 1e6))
            return
        trial = _zeros(latencies.model)
        samples = sorted([await self._trial(latencies.model, trial) for _ in range(_TRIALS)])
        for sample_ns in samples[:-1]:
            latencies.observe(1, sample_ns)

    async def measure_again(self, latencies: Latencies, refused: Submission) -> None:
        """Checks whether a model has become faster, for requests like a refused one.

        Unless it has, this costs one inference.

        Args:
            latencies: The known latencies; they start over if the model has become faster.
            refused: The refused request.

        Raises:
            RemoteError: The server did not answer, or the budget is spent.
        """
        like = replace(refused, body=memoryview(bytes(len(refused.body))))
        took_ns = await self._trial(latencies.model, like)
        if took_ns > (1 - MATERIAL) * latencies.median_ns:
            latencies.confirm(took_ns)
            return
        more = [await self._trial(latencies.model, like) for _ in range(_TRIALS - 2)]
        latencies.start_over([took_ns, *more])

    async def _trial(self, model: CloudModel, trial: Submission) -> int:
        """Runs one inference; returns how long it took, less the time on the way."""
        timeout_s = self._config.timeout_s
        if not self._till.pay(1, timeout_s):
            raise RemoteError(Fault.REFUSED, "the budget is spent")
        started_ns = time.monotonic_ns()
        wanted = [spec.name for spec in model.card.signature.outputs]
        inputs = stacked(model, [trial])
        inference = Inference(model.remote, model.version, inputs, wanted, timeout_s, timeout_s)
        self.settled_ns = started_ns + int(timeout_s * 1e9)
        try:
            inferred = await self._endpoint.infer(inference)
        except RemoteError as error:
            self._till.settle_failed(error, 1, timeout_s, time.monotonic_ns() - started_ns)
            raise
        finally:
            self.settled_ns = 0
        took_ns = time.monotonic_ns() - started_ns
        self._till.settle(timeout_s, took_ns)
        split(model, inferred.outputs, 1)
        there_ns = inferred.there_ns
        way_ns = None if there_ns is None else max(0, took_ns - there_ns)
        self._meter.carried(inferred.sent, inferred.received, way_ns, started_ns)
        return max(1, took_ns - self._meter.both_ways_ns(len(trial.body)))


def _zeros(model: CloudModel) -> Submission:
    """A request of zeros and empty texts, with free dimensions set to 1."""
    specs: list[list[Any]] = [
        [
            spec.name,
            "S1" if spec.dtype == STRING else spec.dtype,
            [1 if size is None else size for size in spec.shape],
        ]
        for spec in model.card.signature.inputs
    ]
    body = memoryview(bytes(body_bytes(specs)))
    shapes = tuple(tuple(shape) for _, _, shape in specs)
    kind = RequestClass(model.card.name, None, shapes)
    return Submission(kind, specs, body, 0, 0, 1.0, False, lambda _: None)

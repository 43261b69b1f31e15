"""The variants that a device serves: the runtime, the offer and the session of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

from scheduler.core.offers import Offer
from workers.choice import Choice
from workers.model import Model, Variant
from workers.model_files import weight_bytes
from workers.residency import Key, Residency, Resident
from workers.runtimes.base import Session
from workers.sampling import item_shapes
from workers.stuck import StuckWatch


class _Served(NamedTuple):
    """A variant that is served: with which runtime and profile, and as offered while in memory."""

    choice: Choice
    offer: Offer


class ServedVariants:
    """What a device serves, in memory or not.

    Args:
        budget_bytes: The memory for all sessions; None for no limit.
        load: Loads a variant with the named runtime again; raises `RunError` when that fails.
        tell: Called with a variant's offer when it leaves memory or returns to it.
        stuck: Told of each batch that runs.

    Attributes:
        lock: Held while a session is run or replaced.
        residency: The variants in memory, and their runners.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        load: Callable[[Model, Variant, str], Session],
        tell: Callable[[Offer], None],
        stuck: StuckWatch,
    ) -> None:
        """Serve nothing yet."""
        self.lock = threading.RLock()
        self.residency = Residency(budget_bytes, lambda key, _loaded: tell(self.offer(key)))
        self._load = load
        self._stuck = stuck
        self._served: dict[Key, _Served] = {}

    @property
    def keys(self) -> list[Key]:
        """All variants that are served."""
        return list(self._served)

    def of(self, model: str) -> list[Key]:
        """The variants of a model that are served."""
        return [key for key in self._served if key[0] == model]

    def choice(self, key: Key) -> Choice | None:
        """The runtime that serves a variant, with its profile; None if it is not served."""
        served = self._served.get(key)
        return None if served is None else served.choice

    def within(self, ns: int) -> list[Key]:
        """The variants in memory that run an item within a time, else only the fastest of them."""
        with self.lock:
            loaded = [key for key in self._served if self.residency.is_loaded(key)]
            alone_ns = {key: median(self._served[key].offer.latency_ns[1]) for key in loaded}
        least_ns = min(alone_ns.values(), default=0)
        return [key for key in loaded if alone_ns[key] <= max(ns, least_ns)]

    def running(self, key: Key, count: int) -> AbstractContextManager[None]:
        """A block in which so many items of a variant run; see `StuckWatch.running`."""
        return self._stuck.running(key, count, self._served[key].offer.latency_ns)

    def size_for(self, key: Key, count: int) -> int:
        """How many items a batch of so many runs as; see `Offer.size_for`."""
        return self._served[key].offer.size_for(count)

    def offer(self, key: Key) -> Offer:
        """A variant's offer; while it is out of memory, each latency includes its loading time."""
        choice, offer = self._served[key]
        if self.residency.is_loaded(key):
            return offer
        slower = {
            batch: tuple(sample + choice.profile.load_ns for sample in samples)
            for batch, samples in offer.latency_ns.items()
        }
        return replace(offer, latency_ns=slower)

    def serve(self, model: Model, variant: Variant, choice: Choice) -> Offer:
        """Serve a variant as chosen, in place of what is served by its name; return its offer."""
        key = (model.name, variant.name)
        resident = Resident(
            load=partial(self._load, model, variant, choice.runtime),
            batched=model.signature.batched,
            size_bytes=weight_bytes(variant.path),
            pinned=model.residency == "pinned",
            session=choice.session,
        )
        offer = Offer(
            model=model.name,
            variant=variant.name,
            runtime=choice.runtime,
            latency_ns=choice.profile.latency_ns,
            rank=variant.rank,
            accuracy=variant.accuracy,
            energy_uj=choice.profile.energy_uj,
            item_shapes=item_shapes(model),
        )
        with self.lock:
            self._served[key] = _Served(choice, offer)
            self.residency.admit(key, resident)
            if model.residency == "lazy":
                self.residency.evict(key)
            return self.offer(key)

    def improve(self, key: Key, better: Choice) -> Offer:
        """Replace the profile of a served variant; return its offer."""
        with self.lock:
            offer = self._served[key].offer
            faster = replace(offer, latency_ns=better.profile.latency_ns)
            self._served[key] = _Served(better, faster)
            return self.offer(key)

    def remove(self, key: Key) -> None:
        """Serve a variant no longer."""
        with self.lock:
            self.residency.remove(key)
            del self._served[key]

    def close(self) -> None:
        """Close all sessions. Nothing runs afterwards."""
        with self.lock:
            self.residency.close()

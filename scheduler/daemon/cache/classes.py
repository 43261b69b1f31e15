"""What the cache needs to know about a class of requests, computed once per class."""

from __future__ import annotations

from typing import Any

import msgpack
from blake3 import blake3

from scheduler.config.cache import CacheConfig
from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING, TensorSpec
from scheduler.daemon.cache.entries import FORMAT
from scheduler.daemon.cache.near import NearFrames
from scheduler.daemon.catalog import Catalog
from scheduler.wire import Body
from workers.link import ModelCard
from workers.model import CacheRules

_REMEMBERED = 1024
_P95 = 0.95


class CacheClass:
    """Requests for one model, with tensors of the same dtypes and shapes, for one variant or any.

    Attributes:
        model: The model's name.
        digest: The digest of its files.
        ttl_ns: How long an answer is kept.
        ttl_ms: The same, as Redis takes it: at least 1.
        most_bytes: Largest answer that is kept.
        outputs: The model's outputs, by name.
        variants: The variants that may answer.
        near: The latest frames; None if only an identical input counts as a hit.
    """

    def __init__(
        self,
        kind: RequestClass,
        specs: list[list[Any]],
        card: ModelCard,
        rules: CacheRules,
        settings: CacheConfig,
    ) -> None:
        """Knows no frames yet."""
        self.model, self.digest = kind.model, card.digest
        self.ttl_ns = int((rules.ttl_s or settings.ttl_s) * 1e9)
        self.ttl_ms = max(1, self.ttl_ns // 1_000_000)
        self.most_bytes = (rules.max_kb or settings.max_value_kb) * 1000
        self.outputs: dict[str, TensorSpec] = {s.name: s for s in card.signature.outputs}
        self.variants = frozenset(card.variants if kind.variant is None else (kind.variant,))
        self.near: NearFrames | None = None
        if rules.near is not None and not kind.exact:
            ((_, dtype, shape),) = specs
            self.near = NearFrames(rules.near, dtype, tuple(shape))
        # Text lengths may differ within a class, so each key must include the specs.
        self._has_text = any(spec.dtype == STRING for spec in card.signature.inputs)
        shared = None if self._has_text else specs
        question = [FORMAT, kind.model, card.digest, kind.variant, shared]
        self._hasher = blake3(msgpack.packb(question))

    def key(self, specs: list[list[Any]], body: Body) -> bytes:
        """The 256-bit key of a request: a hash of model, variant, tensor specs and bytes."""
        hasher = self._hasher.copy()
        if self._has_text:
            hasher.update(msgpack.packb(specs))
        hasher.update(body)
        return hasher.digest()


class CacheClasses:
    """The cache classes by request class; forgotten whenever the catalog changes."""

    def __init__(self, catalog: Catalog, settings: CacheConfig) -> None:
        """Knows no classes yet."""
        self._catalog = catalog
        self._settings = settings
        self._known: dict[RequestClass, CacheClass | None] = {}
        self._revision = -1

    def of(self, kind: RequestClass, specs: list[list[Any]]) -> CacheClass | None:
        """The cache class of a request class; None if its answers are never kept."""
        if self._revision != self._catalog.revision:
            self._known.clear()
            self._revision = self._catalog.revision
        try:
            return self._known[kind]
        except KeyError:
            found = self._made(kind, specs)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[kind] = found
        return found

    def _made(self, kind: RequestClass, specs: list[list[Any]]) -> CacheClass | None:
        card = self._catalog.cards[kind.model]
        if card.cache is None or not card.digest:
            return None
        return CacheClass(kind, specs, card, card.cache, self._settings)

    def service_ns(self, found: CacheClass) -> int | None:
        """The p95 latency at batch 1 on the fastest target; None if no target runs the model."""
        return min(
            (
                samples[int(_P95 * len(samples))]
                for (_, model, variant), offer in self._catalog.offers.items()
                if model == found.model and variant in found.variants
                for samples in (offer.latency_ns[1],)
            ),
            default=None,
        )

    def may_keep(self, found: CacheClass, target: str, runtime: str, digest: str) -> bool:
        """Whether an answer came from these very files, not emulated, and not from a cache.

        An answer from another box's cache is not kept, because it would live for a second TTL.
        """
        if runtime == "emulated" or target.partition("/")[2].startswith("cache"):
            return False
        return digest == found.digest

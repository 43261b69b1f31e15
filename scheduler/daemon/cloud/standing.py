"""The state of a server, reported to the core when it changes materially."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import structlog

from scheduler.config.cloud import CloudConfig
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.cloud.latencies import Latencies
from scheduler.daemon.cloud.till import Till
from scheduler.daemon.link import LinkListener
from scheduler.daemon.ways.breaker import Breaker, BreakerState
from scheduler.daemon.ways.limit import Least, VegasLimit
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.sizes import RefusedSizes

FIRST_LIMIT = 8
"""Initial concurrency limit, until it has adapted."""

_TELL_NS = 100_000_000
"""Least time between reports of a changed limit or way: each makes policies recompute."""

_OFFER_NS = 2_000_000_000
"""The same for latencies: the core drops what it has learned about an offer that is replaced."""

log = structlog.get_logger()


class Standing:
    """What the core is told about a server.

    Args:
        config: The server's configuration.
        breaker: Whether anything is sent there.
        meter: The measurements of the way.
        till: Knows what can be paid.
        listener: Passes reports to the core.

    Attributes:
        limit: The concurrency limit.
        latencies: The latencies, by model.
        too_large: Single requests that are larger than it accepts.
    """

    def __init__(
        self,
        config: CloudConfig,
        breaker: Breaker,
        meter: WayMeter,
        till: Till,
        listener: LinkListener,
    ) -> None:
        """Knows no models yet."""
        self.limit = VegasLimit(FIRST_LIMIT, config.max_concurrency)
        self.latencies: Mapping[str, Latencies] = {}
        self.too_large = RefusedSizes()
        self._config = config
        self._breaker = breaker
        self._meter = meter
        self._till = till
        till.on_open = self.tell
        self._listener = listener
        self._least = Least()
        self._offers: tuple[Offer, ...] = ()
        self._most: dict[str, float] = {}
        self._slots = 0
        self._told_ns = self._offered_ns = 0
        self._closed_until_ns = self._doubted_until_ns = 0

    def begin(self, latencies: Mapping[str, Latencies]) -> None:
        """Reports that the server is up, with these models."""
        self.latencies = latencies
        self._closed_until_ns = self._doubted_until_ns = 0
        self._till.begin()
        self.too_large.clear()
        self._way_moved()
        self._make_offers(time.monotonic_ns())
        self._listener.on_up(self._spec())

    def extend(self, latencies: Mapping[str, Latencies]) -> None:
        """Adds models that the server now has."""
        self.latencies = {**self.latencies, **latencies}
        self.offer_anew()

    def learn(self, model: str, count: int, left_ns: int, execute_ns: int, in_flight: int) -> None:
        """Learns from the latency of a batch.

        Args:
            model: The model.
            count: Number of items.
            left_ns: Its time, less the usual time on the way.
            execute_ns: Its time at the server itself, as far as it is known.
            in_flight: How many batches were in flight when it was sent.
        """
        # A way that got longer must not look like an overloaded server.
        way_ns = self._meter.round_trip_ns
        latencies = self.latencies[model]
        size = latencies.size_for(count)
        least_ns = self._least.observe((model, size), execute_ns, time.monotonic_ns())
        self.limit.observe(way_ns + execute_ns, way_ns + least_ns, in_flight)
        latencies.observe(size, left_ns)

    def refused_size(self, kind: RequestClass, count: int) -> None:
        """Sends smaller batches, or no such requests, after a refusal for size."""
        if count > 1:
            self.latencies[kind.model].refuse(count)
        elif self.too_large.add(kind):
            log.info("requests too large for a cloud", target=self._config.name, model=kind.model)
        self.offer_anew()

    # -- reports to the core

    def offer_anew(self) -> None:
        """Reports the current latencies and way."""
        self._way_moved()
        self._make_offers(time.monotonic_ns())
        self.tell()

    def tell(self) -> None:
        """Reports the current state."""
        closed_ns = max(self._closed_until_ns, self._doubted_until_ns)
        until_ns = max(closed_ns, self._till.closed_until_ns)
        self._listener.on_changed(self._spec(), max(0, until_ns - time.monotonic_ns()))

    def tell_unpaid(self) -> None:
        """Reports what the till keeps back; renews offers only if it changes their batch sizes."""
        if self._most != self._payable():
            self._make_offers(time.monotonic_ns())
        self.tell()

    def tell_changes(self) -> None:
        """Reports material changes, unless the last report was too recent."""
        now_ns = time.monotonic_ns()
        if now_ns - self._told_ns < _TELL_NS or self._breaker.state is BreakerState.OPEN:
            return
        news = [self._way_moved(), self._till.moved()]
        moved = any(news) or any(each.model.shrinking.moved() for each in self.latencies.values())
        if not moved and now_ns - self._offered_ns >= _OFFER_NS:
            moved = any(each.moved() for each in self.latencies.values())
        if moved:
            self._make_offers(now_ns)
        if moved or self._slots != self._allowed():
            self.tell()

    def close_for(self, closed_ns: int) -> None:
        """Accepts no new batch for this long, or longer if already closed for longer."""
        self._closed_until_ns = max(self._closed_until_ns, time.monotonic_ns() + closed_ns)
        self.tell()

    def doubt_for(self, doubted_ns: int) -> None:
        """Accepts no new batch for this long; replaces an earlier doubt."""
        self._doubted_until_ns = time.monotonic_ns() + doubted_ns
        self.tell()

    def open(self) -> None:
        """Accepts batches again."""
        self._closed_until_ns = self._doubted_until_ns = 0
        self.tell()

    def allow_sizes(self) -> None:
        """Allows all sizes again: the server may have restarted with larger limits."""
        self.too_large.clear()
        for each in self.latencies.values():
            each.allow_all()

    def describe_shrunk(self) -> list[dict[str, Any]]:
        """The shrunk forms of inputs and their use, for people and programs."""
        known = [each.model.shrinking for each in self.latencies.values()]
        return [told for each in known for told in each.describe()]

    def _way_moved(self) -> bool:
        """Whether the way has changed since this last returned True; if so, resets the minima.

        If a server does not report its time, it seems to take next to none while its way is
        overestimated; such times must not remain as the least possible latency.
        """
        moved = self._meter.moved()
        if moved:
            self._least = Least()
        return moved

    def _allowed(self) -> int:
        return self.limit.value if self._breaker.state is BreakerState.CLOSED else 1

    def _make_offers(self, now_ns: int) -> None:
        self._offered_ns = now_ns
        back_ns = self._meter.back_ns
        self._most = self._payable()
        self._offers = tuple(
            [each.offer(back_ns, self._most[name]) for name, each in self.latencies.items()]
        )

    def _payable(self) -> dict[str, float]:
        return {name: self._till.most(name) for name in self.latencies}

    def _spec(self) -> TargetSpec:
        self._slots, self._told_ns = self._allowed(), time.monotonic_ns()
        return TargetSpec(
            self._config.name,
            self._offers,
            slots=self._slots,
            width=self._slots,
            lead_ns=0,
            cost_per_request=self._config.cost_per_request,
            cost_per_s=self._config.cost_per_s,
            remote=True,
            transfer_ns=self._meter.transfer_ns(),
            too_large=self.too_large.tensors + self._till.too_dear,
            forms=tuple(f for each in self.latencies.values() for f in each.model.shrinking.forms),
        )

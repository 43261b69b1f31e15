"""How things stand with a server, and telling the core so when it matters."""

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
"""Batches at once, until the limit has found its own way."""

_TELL_NS = 100_000_000
"""A limit or a way that changed is told no more often; each time, policies reckon anew."""

_OFFER_NS = 2_000_000_000
"""The same of latencies: the core drops what it has learned of an offer that is replaced."""

log = structlog.get_logger()


class Standing:
    """What the core knows of a server.

    Args:
        config: The server's.
        breaker: Whether anything is sent there.
        meter: What the way is like.
        till: What can be paid.
        listener: Who tells the core.

    Attributes:
        limit: How many batches at once.
        latencies: How long they take there, by model.
        too_large: Single requests that are more than it takes.
    """

    def __init__(
        self,
        config: CloudConfig,
        breaker: Breaker,
        meter: WayMeter,
        till: Till,
        listener: LinkListener,
    ) -> None:
        """Knows no model yet."""
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
        """The server is there, with these models."""
        self.latencies = latencies
        self._closed_until_ns = self._doubted_until_ns = 0
        self._till.begin()
        self.too_large.clear()
        self._way_moved()
        self._make_offers(time.monotonic_ns())
        self._listener.on_up(self._spec())

    def extend(self, latencies: Mapping[str, Latencies]) -> None:
        """The server has more models than it had."""
        self.latencies = {**self.latencies, **latencies}
        self.offer_anew()

    def learn(self, model: str, size: int, left_ns: int, execute_ns: int, in_flight: int) -> None:
        """Takes in how long a batch took.

        Args:
            model: Of which model.
            size: How many items it had.
            left_ns: How long, apart from what the way usually takes.
            execute_ns: How long at the server itself, as far as that is known.
            in_flight: How many batches were there when it was sent.
        """
        # A way that got longer is not a server that has too much to do.
        way_ns = self._meter.round_trip_ns
        least_ns = self._least.observe((model, size), execute_ns, time.monotonic_ns())
        self.limit.observe(way_ns + execute_ns, way_ns + least_ns, in_flight)
        self.latencies[model].observe(size, left_ns)

    def refused_size(self, kind: RequestClass, count: int) -> None:
        """So many at once were more than the server takes: fewer are sent from now on, or none."""
        if count > 1:
            self.latencies[kind.model].refuse(count)
        elif self.too_large.add(kind):
            log.info("requests too large for a cloud", target=self._config.name, model=kind.model)
        self.offer_anew()

    # -- telling

    def offer_anew(self) -> None:
        """Tells what is known by now of latencies and of the way."""
        self._way_moved()
        self._make_offers(time.monotonic_ns())
        self.tell()

    def tell(self) -> None:
        """Tells how things are now."""
        closed_ns = max(self._closed_until_ns, self._doubted_until_ns)
        until_ns = max(closed_ns, self._till.closed_until_ns)
        self._listener.on_changed(self._spec(), max(0, until_ns - time.monotonic_ns()))

    def tell_unpaid(self) -> None:
        """Tells what the till keeps back; offers are made anew only where that concerns them."""
        if self._most != self._payable():
            self._make_offers(time.monotonic_ns())
        self.tell()

    def tell_changes(self) -> None:
        """Tells it if it is news, and not too soon after the last."""
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
        """Takes no new batch for so long, or longer if that was said before."""
        self._closed_until_ns = max(self._closed_until_ns, time.monotonic_ns() + closed_ns)
        self.tell()

    def doubt_for(self, doubted_ns: int) -> None:
        """Takes no new batch for so long, in place of what was said of that before."""
        self._doubted_until_ns = time.monotonic_ns() + doubted_ns
        self.tell()

    def open(self) -> None:
        """Takes batches again."""
        self._closed_until_ns = self._doubted_until_ns = 0
        self.tell()

    def allow_sizes(self) -> None:
        """It may have been started anew, and take larger batches than before."""
        self.too_large.clear()
        for each in self.latencies.values():
            each.allow_all()

    def describe_shrunk(self) -> list[dict[str, Any]]:
        """What was made smaller on the way there, for people and programs."""
        known = [each.model.shrinking for each in self.latencies.values()]
        return [told for each in known for told in each.describe()]

    def _way_moved(self) -> bool:
        """Whether the way is another one than when this was last true.

        A server that doesn't say how long it took seems to have taken next to no time while its way
        is thought to be longer than it is; that must not count as what is possible from then on.
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

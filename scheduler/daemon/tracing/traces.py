"""Traces of requests: what becomes of some of them, told to a process that exports it as spans.

The event loop only sends a small message for each traced request. Spans are made and sent by a
process of their own, because they take many times as long as the rest of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgpack
import structlog

from scheduler import traceparent
from scheduler.daemon.submission import Answer

_AGAIN_S = 10.0
"""How long a process that has ended is not replaced."""

_PARTING_S = 2.0
"""How long a box that ends waits for the last traces, because it is down meanwhile."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced request.

    Attributes:
        trace_id: The trace, 16 bytes in hex.
        parent_id: The span of its caller, 8 bytes in hex; empty if it has none.
        span_id: The span of the request here.
        model: The model that is asked for.
        budget_ns: The budget that its caller gave it.
        start_ns: When it arrived, in nanoseconds since the epoch.
    """

    trace_id: str
    parent_id: str
    span_id: str
    model: str
    budget_ns: int
    start_ns: int

    @property
    def parent(self) -> str:
        """What a server that this request is sent to is told, as a `traceparent`."""
        return traceparent.written(self.trace_id, self.span_id)


class Traces:
    """Decides which requests are traced, and tells what became of them.

    Args:
        endpoint: Where the exporter sends spans, by OTLP over HTTP.
        resource: Attributes of this box.
        share: The share of the requests without a caller's trace that are traced.
        chance: Decides which, and gives ids.
    """

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        share: float,
        chance: Random | None = None,
    ) -> None:
        """Starts the exporter."""
        self._endpoint = endpoint
        self._words = [f"{name}={value}" for name, value in resource.items()]
        self._share = share
        self._chance = chance or Random()
        self._sent = self._lost = 0
        self._why = ""
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._start()

    def begin(self, said: Any, model: str, budget_ns: int) -> Trace | None:
        """The trace of a request that arrives now; None if it is not traced.

        Args:
            said: The `traceparent` of its caller; what is none counts as none, as the standard
                demands.
            model: The model that is asked for.
            budget_ns: Its budget.
        """
        known = traceparent.parsed(said)
        if known is not None:
            trace_id, parent_id, is_sampled = known
            if not is_sampled:
                return None
        elif self._share and self._chance.random() < self._share:
            trace_id, parent_id = f"{self._chance.getrandbits(128) or 1:032x}", ""
        else:
            return None
        span_id = f"{self._chance.getrandbits(64) or 1:016x}"
        return Trace(trace_id, parent_id, span_id, model, budget_ns, time.time_ns())

    def end(self, trace: Trace, answer: Answer) -> None:
        """Tells what became of a request."""
        offer = answer.offer
        queue_ns, _, execute_ns, _ = answer.timing_ns
        message = msgpack.packb(
            (
                *(trace.trace_id, trace.parent_id, trace.span_id, trace.start_ns, time.time_ns()),
                *(queue_ns, execute_ns, answer.outcome.value, answer.reason, answer.target),
                {
                    "model": trace.model,
                    "budget_ms": trace.budget_ns / 1e6,
                    "variant": "" if offer is None else offer.variant,
                    "runtime": "" if offer is None else offer.runtime,
                    "batch": answer.batch,
                    "cache": answer.cache,
                },
            )
        )
        try:
            self._way.send(message)
        except OSError:  # it can't keep up, or has ended
            self._lost += 1

    def describe(self) -> dict[str, Any]:
        """Where spans go, and how many requests were delivered and lost."""
        return {
            "endpoint": self._endpoint,
            "delivered": self._sent,
            "lost": self._lost,
            "problem": self._why,
        }

    async def close(self, patience_s: float) -> None:
        """Lets the exporter deliver what it has, for so long at most, and two seconds."""
        if self._again is not None:
            self._again.cancel()
        self._hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, min(max(0.0, patience_s), _PARTING_S))
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._way.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.exporter", self._endpoint, *self._words],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        self._loop.add_reader(self._way, self._hear)

    def _hear(self) -> None:
        """Takes what the exporter tells of a delivery: how many requests, and why it failed."""
        try:
            message = self._way.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            self._ended()
            return
        count, why = msgpack.unpackb(message)
        if why:
            self._lost += count
        else:
            self._sent += count
        if why and not self._why:
            log.warning("traces are not delivered", endpoint=self._endpoint, reason=why)
        elif self._why and not why:
            log.info("traces are delivered again", endpoint=self._endpoint)
        self._why = why

    def _hang_up(self) -> None:
        if self._way.fileno() >= 0:
            self._loop.remove_reader(self._way)
            self._way.close()

    def _ended(self) -> None:
        self._hang_up()  # what is traced until the next one starts is lost
        self._process.kill()
        self._fail(f"the exporter ended with status {self._process.wait()}")

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:  # such as too many processes
            self._hang_up()
            self._fail(f"the exporter can't be started: {error}")

    def _fail(self, why: str) -> None:
        """Tells it once, and starts the exporter again later."""
        if why != self._why:
            log.error("traces are not delivered", endpoint=self._endpoint, reason=why)
        self._why = why
        self._again = self._loop.call_later(_AGAIN_S, self._start_again)

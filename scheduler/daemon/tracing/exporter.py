"""The process that makes spans of traced requests and sends them to an OpenTelemetry collector.

    python -m scheduler.daemon.tracing.exporter ENDPOINT [NAME=VALUE ...] < SOCKET

Its standard input is a socket with a message for each request, as `Traces.end` writes it. It
answers with how many requests it has delivered, or could not deliver, and why. It ends with its
input. Names and values are attributes of the box.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from random import getrandbits
from typing import Any

import msgpack
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

_EVERY_S = 1.0
_MOST = 256
"""How long requests wait to be delivered together, and how many at most."""

_TIMEOUT_S = 5.0
_SCOPE = InstrumentationScope("laxity")
_IN_TIME = ("completed", "late")


class FirstWords(logging.Handler):
    """Remembers why a delivery failed, which the exporter only logs.

    That is the first it says: what it says last is that it has given up.

    Attributes:
        text: What it said; whoever reads it empties it.
    """

    def __init__(self) -> None:
        """Has heard nothing yet."""
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Takes what is logged."""
        self.text = self.text or record.getMessage()


class Deliveries:
    """Collects the spans of requests and delivers them.

    Args:
        exporter: Delivers spans.
        resource: Attributes of the box.
        way: Hears what became of them.
        words: What the exporter logs.
    """

    def __init__(
        self, exporter: SpanExporter, resource: Resource, way: socket.socket, words: FirstWords
    ) -> None:
        self._exporter = exporter
        self._resource = resource
        self._way = way
        self._words = words
        self._spans: list[ReadableSpan] = []
        self._requests = 0
        self._due_s = 0.0

    def take(self, message: bytes) -> None:
        """Takes what became of a request."""
        if not self._requests:
            self._due_s = time.monotonic() + _EVERY_S
        self._spans += spans_of(msgpack.unpackb(message), self._resource)
        self._requests += 1
        if self._requests >= _MOST or time.monotonic() >= self._due_s:
            self.deliver()

    def left_s(self) -> float | None:
        """How long until the next delivery; None if there is nothing to deliver."""
        return max(1e-3, self._due_s - time.monotonic()) if self._requests else None

    def deliver(self) -> None:
        """Delivers what there is."""
        if not self._requests:
            return
        self._words.text = ""
        result = self._exporter.export(self._spans)
        failed = result is not SpanExportResult.SUCCESS
        why = (self._words.text or "the collector refused them") if failed else ""
        with contextlib.suppress(OSError):
            self._way.send(msgpack.packb((self._requests, why[:1000])))
        self._spans, self._requests = [], 0


def spans_of(message: Sequence[Any], resource: Resource) -> list[ReadableSpan]:
    """The span of a request, and below it those of its time in the queue and at its target."""
    trace_id, parent_id, span_id, start_ns, end_ns, queue_ns, execute_ns, *rest = message
    outcome, reason, target, facts = rest
    trace, span = int(trace_id, 16), int(span_id, 16)
    own = _context(trace, span, is_remote=False)
    parent = _context(trace, int(parent_id, 16), is_remote=True) if parent_id else None
    ended_well = outcome in _IN_TIME
    told = {f"laxity.{name}": value for name, value in facts.items() if value not in ("", 0)}
    told |= {"laxity.outcome": outcome} | ({"laxity.target": target} if target else {})

    def span_of(
        name: str, begun_ns: int, until_ns: int, kind: SpanKind, **said: Any
    ) -> ReadableSpan:
        context = _context(trace, getrandbits(64) or 1, is_remote=False)
        return ReadableSpan(
            name,
            **{"context": context, "parent": own, **said},
            resource=resource,
            kind=kind,
            start_time=begun_ns,
            end_time=max(begun_ns, until_ns),
            instrumentation_scope=_SCOPE,
        )

    spans = [
        span_of(
            f"infer {facts['model']}",
            start_ns,
            end_ns,
            SpanKind.SERVER,
            context=own,
            parent=parent,
            attributes=told,
            status=Status(StatusCode.UNSET) if ended_well else Status(StatusCode.ERROR, reason),
        )
    ]
    left_ns = start_ns + queue_ns
    if queue_ns:
        spans.append(span_of("queue", start_ns, left_ns, SpanKind.INTERNAL))
    if execute_ns:
        attributes = {"laxity.execute_ms": execute_ns / 1e6, "laxity.batch": facts["batch"]}
        spans.append(
            span_of(f"run on {target}", left_ns, end_ns, SpanKind.INTERNAL, attributes=attributes)
        )
    return spans


def _context(trace_id: int, span_id: int, is_remote: bool) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))


def main(words: Sequence[str]) -> None:
    """Delivers until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever sends them ends the input, too
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)  # spans can wait, requests can't
    endpoint, *pairs = words
    said = FirstWords()
    logging.basicConfig(handlers=[said], force=True)
    resource = Resource.create(dict(pair.partition("=")[::2] for pair in pairs))
    with socket.socket(fileno=0) as way:
        exporter = OTLPSpanExporter(endpoint, timeout=_TIMEOUT_S)
        deliveries = Deliveries(exporter, resource, way, said)
        while True:
            way.settimeout(deliveries.left_s())
            try:
                message = way.recv(1 << 20)
            except TimeoutError:
                deliveries.deliver()
                continue
            if not message:
                break
            deliveries.take(message)
        deliveries.deliver()


if __name__ == "__main__":
    main(sys.argv[1:])

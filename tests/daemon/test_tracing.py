"""Traced requests: which they are, what is told of them, and what happens without a collector."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from random import Random
from typing import Any

import msgpack
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode
from structlog.testing import capture_logs

from scheduler import AsyncClient, Client, traceparent
from scheduler.config.box import load_config
from scheduler.config.problems import ConfigError
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.neighbours.forwarding import forwarded
from scheduler.daemon.parts import open_traces
from scheduler.daemon.submission import Answer, Submission
from scheduler.daemon.tracing import traces as module
from scheduler.daemon.tracing.exporter import Deliveries, FirstWords, spans_of
from scheduler.daemon.tracing.traces import Traces
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.request import Terms
from scheduler.tenants import ANYONE
from tests.collector import Collector, told
from tests.fake_box import FakeBox, image

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
BOX = {"service.name": "laxity", "service.instance.id": "a"}
NOWHERE = "http://127.0.0.1:9/v1/traces"


@pytest.fixture(autouse=True)
def on_a_slow_machine(monkeypatch):
    monkeypatch.setattr(module, "_PARTING_S", 30.0)


def good(**more: Any) -> Answer:
    offer = Offer("m", "v", "onnxruntime", {1: (1,)})
    timing_ns = (2_000_000, 100_000, 3_000_000, 5_100_000)
    return Answer(Outcome.COMPLETED, "", {}, "cpu:0", offer, 4, timing_ns=timing_ns, **more)


@asynccontextmanager
async def tracing(endpoint: str) -> AsyncIterator[Traces]:
    traces = Traces(endpoint, BOX, 0.0, Random(1))
    try:
        yield traces
    finally:
        await traces.close(10)


async def until(true: Any) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 30)


# -- which requests


class Deciding(Traces):
    """Starts no exporter."""

    def _start(self) -> None:
        pass


def begun(*said: Any, share: float = 0.0) -> list[Any]:
    async def play() -> list[Any]:
        traces = Deciding(NOWHERE, BOX, share, Random(1))
        return [traces.begin(each, "m", 50_000_000) for each in said]

    return asyncio.run(play())


def test_requests_whose_callers_trace_them_are_traced_as_parts_of_their_traces():
    [trace] = begun(SAMPLED)
    assert (trace.trace_id, trace.parent_id) == (TRACE, SPAN)
    assert trace.span_id not in (SPAN, "0" * 16)
    assert trace.parent == f"00-{TRACE}-{trace.span_id}-01"


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        "",
        f"00-{TRACE}-{SPAN}-00",  # its caller has decided not to trace it
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"{SAMPLED}, {SAMPLED}",
    ],
)
def test_others_are_not(said):
    assert begun(said) == [None]


def test_a_later_version_may_say_more():
    [trace] = begun(f"01-{TRACE}-{SPAN}-03-more")
    assert trace.parent_id == SPAN


def test_a_share_of_those_without_a_trace_is_traced_anew():
    found = begun(*[None] * 1000, share=0.3)
    traced = [trace for trace in found if trace is not None]
    assert 230 < len(traced) < 370
    assert {trace.parent_id for trace in traced} == {""}
    assert len({trace.trace_id for trace in traced}) == len(traced)
    assert begun(f"00-{TRACE}-{SPAN}-00", share=1.0) == [None]


# -- what is told


def test_a_request_has_a_span_and_below_it_those_of_its_queue_and_its_run():
    facts = {"model": "m", "budget_ms": 50.0, "variant": "v", "runtime": "r", "batch": 4}
    rest = ("completed", "", "gpu:0", {**facts, "cache": ""})
    message = (TRACE, SPAN, "00000000000000aa", 1_000, 9_000, 2_000, 5_000, *rest)
    spans: list[Any] = spans_of(message, Resource({}))
    whole, queue, run = spans

    assert (whole.name, whole.start_time, whole.end_time) == ("infer m", 1_000, 9_000)
    assert f"{whole.context.trace_id:x}" == TRACE.lstrip("0")
    assert (whole.context.span_id, f"{whole.parent.span_id:x}") == (0xAA, SPAN)
    assert dict(whole.attributes) == {
        "laxity.model": "m",
        "laxity.budget_ms": 50.0,
        "laxity.variant": "v",
        "laxity.runtime": "r",
        "laxity.batch": 4,
        "laxity.outcome": "completed",
        "laxity.target": "gpu:0",
    }
    assert whole.status.status_code is StatusCode.UNSET
    assert (queue.name, queue.start_time, queue.end_time) == ("queue", 1_000, 3_000)
    assert (run.name, run.start_time, run.end_time) == ("run on gpu:0", 3_000, 9_000)
    assert {queue.parent.span_id, run.parent.span_id} == {0xAA}


def test_a_request_that_was_refused_is_an_error_with_its_reason():
    rest = ("infeasible", "no target can", "", {"model": "m", "budget_ms": 1.0, "batch": 0})
    [span] = spans_of((TRACE, "", "aa", 1_000, 2_000, 0, 0, *rest), Resource({}))
    assert span.parent is None
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "no target can"


def test_what_was_traced_is_delivered_with_who_tells_it_at_the_latest_when_the_box_ends():
    async def play(collector: Collector) -> Traces:
        async with tracing(f"{collector.url}/v1/traces") as traces:
            trace = traces.begin(SAMPLED, "m", 50_000_000)
            assert trace is not None
            traces.end(trace, good())
            await until(lambda: traces.describe()["delivered"] == 1)
            assert len(collector.spans) == 3
            traces.end(trace, Answer(Outcome.EXPIRED, "too late", {}))
        return traces

    with Collector() as collector:
        asyncio.run(play(collector))
        whole, *_, refused = collector.of_box("a")
    assert whole.trace_id.hex() == TRACE
    assert whole.parent_span_id.hex() == SPAN
    assert told(whole)["laxity.batch"] == 4
    assert refused.status.message == "too late"


def test_another_box_is_told_the_trace_of_what_it_is_sent():
    kind = RequestClass("m", None, ((1,),))
    specs: list[list[Any]] = [["x", "float32", [1]]]
    body = memoryview(bytes(4))
    dispatch = Dispatch(7, "b", "m", "v", (1,), 0, "")
    for trace in ("", SAMPLED):
        asked = Submission(kind, specs, body, 0, 3, 1.0, False, lambda _: None, trace=trace)
        header, _ = forwarded(dispatch, asked, None)
        assert header.get("trace", "") == trace


# -- when it can't be told


def test_what_can_not_be_delivered_is_counted_and_logged_once():
    async def play(collector: Collector) -> None:
        async with tracing(f"{collector.url}/v1/traces") as traces:
            trace = traces.begin(SAMPLED, "m", 50_000_000)
            assert trace is not None
            for status, wanted in ((403, (0, 1)), (403, (0, 2)), (200, (1, 2))):
                collector.status = status
                traces.end(trace, good())

                def counted() -> tuple[int, int]:
                    said = traces.describe()
                    return said["delivered"], said["lost"]

                await until(lambda wanted=wanted: counted() == wanted)
                assert ("403" in traces.describe()["problem"]) == (status == 403)

    with Collector() as collector, capture_logs() as logs:
        asyncio.run(play(collector))
    assert [entry["event"] for entry in logs] == [
        "traces are not delivered",
        "traces are delivered again",
    ]


class Unlucky(SpanExporter):
    """Fails as the exporters of OpenTelemetry do."""

    def export(self, spans: Any) -> SpanExportResult:
        logging.getLogger("unlucky").warning("%s: connection refused, retrying", "host")
        logging.getLogger("unlucky").error("failed due to timeout, max retries or shutdown")
        return SpanExportResult.FAILURE


def test_the_problem_is_why_a_delivery_failed_and_not_that_it_was_given_up(monkeypatch):
    words = FirstWords()
    monkeypatch.setattr(logging.getLogger("unlucky"), "handlers", [words])
    message = (TRACE, "", "aa", 1, 2, 0, 0, "late", "", "", {"model": "m", "batch": 0})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        deliveries = Deliveries(Unlucky(), Resource({}), theirs, words)
        for _ in range(2):
            deliveries.take(msgpack.packb(message))
            deliveries.deliver()
            assert msgpack.unpackb(ours.recv(1 << 16)) == [1, "host: connection refused, retrying"]


def test_an_exporter_that_ends_is_replaced_and_disturbs_nobody(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.2)
    start, refused = subprocess.Popen, [True]

    def popen(*args: Any, **how: Any) -> Any:
        if any(refused):
            raise BlockingIOError("too many processes")
        return start(*args, **how)

    async def play(collector: Collector) -> None:
        async with tracing(f"{collector.url}/v1/traces") as traces:
            trace = traces.begin(SAMPLED, "m", 50_000_000)
            assert trace is not None
            monkeypatch.setattr(subprocess, "Popen", popen)
            first = traces._process
            first.kill()
            await until(lambda: traces.describe()["problem"])
            traces.end(trace, good())
            assert traces.describe()["lost"] == 1
            refused.clear()
            await until(lambda: traces._process is not first)
            traces.end(trace, good())
            await until(lambda: traces.describe()["delivered"] == 1)
            assert traces.describe()["problem"] == ""

    with Collector() as collector:
        asyncio.run(play(collector))


def test_an_exporter_that_can_not_be_started_is_started_later(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    start, refused = subprocess.Popen, iter(range(2))

    async def play() -> None:
        async with tracing(NOWHERE) as traces:
            first = traces._process

            def popen(*args: Any, **how: Any) -> Any:
                if next(refused, None) is not None:
                    raise BlockingIOError("too many processes")
                return start(*args, **how)

            monkeypatch.setattr(subprocess, "Popen", popen)
            first.kill()
            await until(lambda: "too many processes" in traces.describe()["problem"])
            await until(lambda: traces._process is not first)

    with capture_logs() as logs:
        asyncio.run(play())
    assert [entry["reason"] for entry in logs] == [
        "the exporter ended with status -9",
        "the exporter can't be started: too many processes",
    ]


def test_a_box_that_ends_does_not_wait_for_a_collector_as_long_as_for_requests(monkeypatch):
    monkeypatch.setattr(module, "_PARTING_S", 0.1)

    async def play() -> None:
        async with tracing(NOWHERE) as traces:
            os.kill(traces._process.pid, signal.SIGSTOP)
            await asyncio.wait_for(traces.close(600), 30)
            assert traces._process.returncode == -signal.SIGKILL

    asyncio.run(play())


def test_an_exporter_that_hangs_costs_traces_and_no_time():
    async def play() -> None:
        async with tracing(NOWHERE) as traces:
            trace = traces.begin(SAMPLED, "m", 50_000_000)
            assert trace is not None
            os.kill(traces._process.pid, signal.SIGSTOP)
            for _ in range(5_000):
                traces.end(trace, good())
            assert traces.describe()["lost"] > 0
            await traces.close(0.1)
            assert traces._process.returncode == -signal.SIGKILL

    asyncio.run(play())


def test_a_box_that_lacks_what_sends_traces_says_how_to_get_it(monkeypatch, tmp_path):
    file = tmp_path / "edge.yaml"
    file.write_text("tracing: {endpoint: 'http://127.0.0.1:4318'}")
    config = load_config(file)

    def lacking(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", lacking)
    with pytest.raises(ConfigError, match=r"tracing: needs .* pip install 'laxity\[tracing\]'"):
        open_traces(config)


# -- the caller's span


def test_a_programs_current_span_travels_with_its_requests(box: FakeBox) -> None:
    async def infer() -> None:
        async with AsyncClient(box.url) as client:
            await client.infer("digits", image(2), deadline_ms=60_000)

    accepted = {"task": "a", "new": True}
    box.on_task = lambda peer, asked: peer.send(
        {"t": "reply", "id": asked["id"], "value": accepted}
    )
    tracer = TracerProvider().get_tracer("app")
    with Client(box.url) as client:
        client.infer("digits", image(0), deadline_ms=60_000)
        with tracer.start_as_current_span("frame") as span:
            client.infer("digits", image(1), deadline_ms=60_000)
            asyncio.run(infer())
            client.submit("digits", image(3), deadline_s=60, durable=True)
    context = span.get_span_context()
    own = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    assert [header.get("trace") for _, header in box.wait("infer", 3)] == [None, own, own]
    assert ["trace" in header for _, header in box.wait("task")] == [False]
    assert traceparent.current() == ""


def test_a_door_passes_on_what_its_caller_says_and_has_no_span_of_its_own() -> None:
    async def traces() -> list[Any]:
        door = Box("unix:///nowhere")
        terms = Terms(ANYONE, 50, 50, trace=SAMPLED), Terms(ANYONE, 50, 50)
        calls = [door.call("m", {"x": [1.0]}, None, each, lambda _: None) for each in terms]
        return [call.header.get("trace") for call in calls]

    with TracerProvider().get_tracer("app").start_as_current_span("frame"):
        assert asyncio.run(traces()) == [SAMPLED, None]


def test_without_opentelemetry_there_is_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert traceparent.current() == ""

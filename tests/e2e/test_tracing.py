"""A request's trace, from its caller through a box to a cloud and another box."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.noop import make_models
from benchmarks.spill_clouds import emulated
from scheduler import Client
from tests.collector import Collector, told
from tests.e2e.running_agent import RunningAgent
from tests.waiting import eventually

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
X = np.zeros(16, np.float32)
SLOW_MS = 1_000.0
IN_TIME_MS = 900
"""What only the cloud can keep to, and it does on a busy machine as well."""


class Pair:
    """A box that is too slow, its cloud, and the collector of both."""

    def __init__(self, folder: Path, stack: ExitStack, far_door: str) -> None:
        make_models(folder / "models")
        shutil.rmtree(folder / "models/echo")
        self.collector = stack.enter_context(Collector())
        tracing = {"endpoint": self.collector.url}
        for name in ("far", "near"):
            (folder / name).mkdir()
        far = RunningAgent(
            folder / "far",
            folder / "models",
            site="far",
            listen={far_door: "127.0.0.1:0"},
            devices=emulated({"base_ms": 1.0, "per_item_ms": 1.0}),
            tracing=tracing,
        )
        stack.callback(far.close)
        scheme = "grpc" if far_door == "grpc" else "http"
        self.near = RunningAgent(
            folder / "near",
            folder / "models",
            site="near",
            listen={"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
            devices=emulated({"base_ms": SLOW_MS, "per_item_ms": 0.0}),
            profile={"max_batch": 1, "seconds": 0.1},
            cloud=[{"name": "far", "url": f"{scheme}://{far.address(far_door)}"}],
            tracing=tracing,
        )
        stack.callback(self.near.close)

    def of_trace(self, trace_id: str, site: str) -> list[Span]:
        """The spans of requests in a trace that a site has told of."""
        return [
            span
            for box, span in self.collector.taken
            if box["service.namespace"] == site
            and span.trace_id.hex() == trace_id
            and span.name.startswith("infer")
        ]


@pytest.fixture(scope="module", params=["grpc", "http"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("pair"), stack, request.param)


def by_client(pair: Pair) -> tuple[str, str]:
    with (
        TracerProvider().get_tracer("app").start_as_current_span("frame") as span,
        Client(pair.near.url) as client,
    ):
        client.infer("noop", {"x": X}, deadline_ms=IN_TIME_MS)
        context = span.get_span_context()
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def by_http(pair: Pair) -> tuple[str, str]:
    trace_id = TRACE[:-1] + "d"
    x = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": X.tolist()}
    request = urllib.request.Request(
        f"http://{pair.near.address('http')}/v2/models/noop/infer",
        json.dumps({"inputs": [x], "parameters": {"timeout": IN_TIME_MS * 1_000}}).encode(),
        {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{SPAN}-01"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    return trace_id, SPAN


def by_grpc(pair: Pair) -> tuple[str, str]:
    trace_id = TRACE[:-1] + "e"
    x = triton_grpc.InferInput("x", [1, 16], "FP32")
    x.set_data_from_numpy(X[None])
    with triton_grpc.InferenceServerClient(pair.near.address("grpc")) as client:
        headers = {"traceparent": f"00-{trace_id}-{SPAN}-01"}
        client.infer("noop", [x], headers=headers, client_timeout=IN_TIME_MS / 1e3)
    return trace_id, SPAN


@pytest.mark.parametrize("ask", [by_client, by_http, by_grpc])
def test_the_spans_of_a_request_follow_it_to_the_cloud(pair: Pair, ask: Any) -> None:
    trace_id, parent_id = ask(pair)
    eventually(lambda: pair.of_trace(trace_id, "near") and pair.of_trace(trace_id, "far"))
    [near], [far] = pair.of_trace(trace_id, "near"), pair.of_trace(trace_id, "far")
    assert near.parent_span_id.hex() == parent_id
    assert far.parent_span_id == near.span_id
    assert (told(near)["laxity.target"], told(far)["laxity.target"]) == ("far", "cpu:0")
    assert near.start_time_unix_nano < far.start_time_unix_nano
    assert far.end_time_unix_nano < near.end_time_unix_nano


def test_what_nobody_traces_is_not_traced_and_the_status_tells_of_what_is(pair: Pair) -> None:
    by_client(pair)
    with Client(pair.near.url) as client:
        before = len(pair.collector.taken)
        eventually(lambda: client.status()["tracing"]["delivered"])
        assert client.status()["tracing"]["lost"] == 0
        for _ in range(20):
            client.infer("noop", {"x": X}, deadline_ms=IN_TIME_MS)
    trace_id, _ = by_client(pair)
    eventually(lambda: pair.of_trace(trace_id, "near"))
    later = [span for _, span in pair.collector.taken[before:]]
    assert sum(span.name.startswith("infer") for span in later) <= 4  # of both calls, at both ends

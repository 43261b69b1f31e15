"""Clients that people own already, unchanged, at the HTTP door of a real agent."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.utils.shared_memory as shm

from scheduler import Client
from tests.e2e.http_requests import SLOW, X, judged, latency_ms, request, said
from tests.e2e.running_agent import RunningAgent
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def http_at(shared_agent: RunningAgent) -> str:
    return shared_agent.address("http")


@pytest.fixture(scope="module")
def grpc_at(shared_agent: RunningAgent) -> str:
    return shared_agent.address("grpc")


@pytest.fixture
def http(http_at: str) -> Iterator[HTTPConnection]:
    connection = HTTPConnection(http_at, timeout=PATIENCE_S)
    yield connection
    connection.close()


@pytest.fixture
def client(grpc_at: str) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(grpc_at) as client:
        yield client


def arrived(client: Client) -> int:
    """How many requests the box has ever been given."""
    status = client.status()
    return int(status["held"] + sum(status["outcomes"].values()))


# -- HTTP


def test_prometheus_reads_how_the_box_is(http: HTTPConnection) -> None:
    def completed() -> float:
        status, headers, body = said(http, "GET", "/metrics")
        assert (status, headers["content-type"]) == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
        )
        (line,) = re.findall(rb'^laxity_requests_total{outcome="completed"} (\S+)$', body, re.M)
        return float(line)

    before = completed()
    assert said(http, "POST", "/v2/models/relu/infer", request(X))[0] == 200
    assert completed() >= before + 1


def test_health_says_it_in_both_styles(http: HTTPConnection) -> None:
    status, _, body = said(http, "GET", "/v2/health/live")
    assert (status, json.loads(body)) == (200, {"live": True})
    status, _, body = said(http, "GET", "/v2/health/ready")
    assert (status, json.loads(body)) == (200, {"ready": True})
    status, _, body = said(http, "GET", "/v2/models/relu/ready")
    assert (status, json.loads(body)) == (200, {"name": "relu", "ready": True})
    assert said(http, "GET", "/v2/models/broken/ready")[0] == 404


def test_json_in_and_json_out_with_how_it_went(http: HTTPConnection) -> None:
    body = request(X, id="42", parameters={"camera": "7", "timeout": 2_000_000})
    status, headers, answer = said(http, "POST", "/v2/models/relu/infer", body)
    found = json.loads(answer)
    assert (status, found["id"], found["parameters"]["camera"]) == (200, "42", "7")
    assert found["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [3], "data": [0.0, 0.0, 2.0]}
    ]
    assert found["parameters"]["outcome"] == headers["x-laxity-outcome"] == "completed"
    assert 0 < found["parameters"]["laxity_us"] < 2_000_000
    assert {part.split(";")[0].strip() for part in headers["server-timing"].split(",")} == {
        "queue",
        "transfer",
        "execute",
        "total",
    }


def test_binary_in_and_out_large_and_small(http: HTTPConnection) -> None:
    for model, width in (("relu", 3), ("wide", 9_000), ("relu", 3)):
        x = np.linspace(-1, 1, width, dtype=np.float32)
        tensor: dict[str, Any] = {"name": "x", "shape": [1, width], "datatype": "FP32"}
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        for _ in range(2):
            status, headers, body = said(
                http,
                "POST",
                f"/v2/models/{model}/infer",
                head + x.tobytes(),
                Inference_Header_Content_Length=str(len(head)),
            )
            assert status == 200, body
            size = int(headers["Inference-Header-Content-Length"])
            outputs = json.loads(body[:size])["outputs"]
            assert outputs[0]["shape"] == [1, width]
            np.testing.assert_array_equal(np.frombuffer(body[size:], np.float32), x.clip(0))


def test_a_raw_request_is_the_tensor_alone(http: HTTPConnection) -> None:
    status, headers, body = said(
        http, "POST", "/v2/models/relu/infer", X.tobytes(), Inference_Header_Content_Length="0"
    )
    size = int(headers["Inference-Header-Content-Length"])
    assert status == 200
    np.testing.assert_array_equal(np.frombuffer(body[size:], np.float32), [0, 0, 2])


def test_items_of_a_batch_come_back_together(http: HTTPConnection) -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    status, _, answer = said(http, "POST", "/v2/models/relu/infer", request(x))
    (output,) = json.loads(answer)["outputs"]
    assert (status, output["shape"]) == (200, [4, 3])
    np.testing.assert_array_equal(output["data"], x.clip(0).ravel())
    assert said(http, "POST", "/v2/models/relu/infer", request(x[:0]))[0] == 400
    assert said(http, "POST", "/v2/models/relu/infer", request(np.ones((257, 3))))[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v2/models/rel/infer", request(X), 404, "model_not_found"),
        ("/v2/models/relu/versions/9/infer", request(X), 404, "model_not_found"),
        ("/v2/models/relu/infer", request(X, outputs=[{"name": "z"}]), 400, "invalid_input"),
        ("/v2/models/relu/infer", {"inputs": []}, 400, "invalid_input"),
        ("/v2/models/relu/infer", "[[[", 400, "invalid_input"),
        ("/v2/models/relu/infer", request(X, parameters={"timeout": -1}), 400, "invalid_input"),
        ("/v2/models/relu/infer", request([1, 2]), 400, "invalid_input"),
        ("/v2/nowhere", None, 404, "not_found"),
        ("/v2/health/live", None, 405, "method_not_allowed"),
        ("/v2/repository/models/relu/unload", None, 403, "forbidden"),
    ],
)
def test_what_is_wrong_is_told_and_the_connection_stays(
    http: HTTPConnection, path: str, body: Any, status: int, code: str
) -> None:
    found, _, answer = said(http, "POST", path, body)
    refusal = json.loads(answer)
    assert (found, refusal["code"]) == (status, code), refusal
    assert len(refusal["error"]) > 10
    assert said(http, "POST", "/v2/models/relu/infer", request(X))[0] == 200


def test_every_deadline_convention_is_kept(
    http: HTTPConnection, shared_agent: RunningAgent
) -> None:
    hopeless_ms = latency_ms(shared_agent, "slow") / 4
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"timeout": int(hopeless_ms * 1000)}, {}),
        ({}, {"x_request_timeout_ms": f"{hopeless_ms:.3f}"}),
        ({}, {"x_request_timeout_seconds": f"{hopeless_ms / 1000:.6f}"}),
        ({}, {"x_envoy_expected_rq_timeout_ms": f"{hopeless_ms:.3f}"}),
        # The first one found wins.
        ({"timeout": int(hopeless_ms * 1000)}, {"x_request_timeout_ms": "9999"}),
    ]
    for parameters, headers in ways:
        body = request(SLOW, parameters=parameters)
        ask = partial(said, http, "POST", "/v2/models/slow/infer", body, **headers)
        status, found, answer = judged(ask)
        refusal = json.loads(answer)
        assert (status, refusal["code"], found["retry-after"]) == (429, "infeasible", "1"), refusal
        assert min(refusal["earliest_budget_ms"].values()) == refusal["earliest_ms"] > hopeless_ms
    assert said(http, "POST", "/v2/models/slow/infer", request(SLOW), prefer="wait=9")[0] == 200


def test_a_late_result_comes_only_if_it_was_asked_for(
    http: HTTPConnection, shared_agent: RunningAgent
) -> None:
    hopeless_us = int(latency_ms(shared_agent, "slow") * 250)
    parameters = {"timeout": hopeless_us, "accept_late": True}
    body = request(SLOW, parameters=parameters)
    # A busy machine may not even begin before the deadline.
    status, headers, answer = judged(partial(said, http, "POST", "/v2/models/slow/infer", body))
    assert (status, headers["x-laxity-outcome"]) == (200, "late")
    assert json.loads(answer)["parameters"]["laxity_us"] < 0


def test_the_expired_hear_it_at_their_deadline_while_a_long_batch_runs(
    http_at: str, shared_agent: RunningAgent
) -> None:
    one_ms = latency_ms(shared_agent, "slow")
    http = HTTPConnection(http_at, timeout=PATIENCE_S)
    budget_ms = 1.5 * one_ms  # enough on an idle device, and not behind one that has just begun
    body = request(SLOW, parameters={"timeout": int(budget_ms * 1000), "priority": 8})
    with Client(shared_agent.url) as client:
        blockers = [
            client.submit("slow", {"x": SLOW}, deadline_ms=60_000, priority=0) for _ in range(24)
        ]
        client.status()
        status, _, _ = said(http, "POST", "/v2/models/slow/infer", body)
        done = sum(blocker.done() for blocker in blockers)
        for blocker in blockers:
            blocker.result()
    http.close()
    assert status in (429, 504)
    assert done < len(blockers) / 2, "it hears so long before its turn"


def test_two_clients_are_served_in_the_order_of_their_deadlines(
    http_at: str, shared_agent: RunningAgent
) -> None:
    one_ms = latency_ms(shared_agent, "slow")
    order: list[str] = []

    def ask(path: str, runs: int) -> None:
        http = HTTPConnection(http_at, timeout=PATIENCE_S)
        body = request(SLOW, parameters={"timeout": int(runs * one_ms * 1000)})
        assert said(http, "POST", f"{path}/infer", body)[0] == 200
        order.append(path)
        http.close()

    with Client(shared_agent.url) as client:
        (described,) = [each for each in client.models()["models"] if each["name"] == "slow"]
        # Who names a variant shares no batch with who doesn't, or they would be answered at once.
        first = "/v2/models/slow"
        last = f"{first}/versions/{described['variants'][0]['name']}"
        blockers = [
            client.submit("slow", {"x": SLOW}, deadline_ms=60_000, priority=0) for _ in range(96)
        ]
        # Run between the two, so that threads on a busy machine hear in the order of the answers.
        between = [client.submit("slow", {"x": SLOW}, deadline_ms=600 * one_ms) for _ in range(16)]
        threads = [threading.Thread(target=ask, args=each) for each in ((last, 800), (first, 400))]
        for number, thread in enumerate(threads):
            before = arrived(client)
            thread.start()
            while arrived(client) == before and not blockers[-1].done():
                pass
            assert not blockers[-1].done(), f"request {number} came too late to wait"
        for thread in threads:
            thread.join()
        assert all(each.done() for each in between)
    assert order == [first, last]


def test_a_client_that_goes_away_is_forgotten(http_at: str, shared_agent: RunningAgent) -> None:
    host, _, port = http_at.rpartition(":")
    body = json.dumps(request(SLOW, model="slow")).encode()
    head = (
        f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: {http_at}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with Client(shared_agent.url) as client:
        before = client.status()["outcomes"]["cancelled"]
        due = arrived(client) + 6
        blockers = [client.submit("slow", {"x": SLOW}, deadline_ms=60_000) for _ in range(6)]
        for _ in range(3):
            due += 1
            with socket.create_connection((host, int(port))) as leaver:
                leaver.sendall(head.encode() + body)
                while arrived(client) < due:
                    pass
        for blocker in blockers:
            blocker.result()
        eventually(lambda: not client.status()["held"])
        # Those whose bytes were read before the connection closed; none ran to its end.
        status = client.status()
        assert status["held"] == 0
        assert status["outcomes"]["cancelled"] >= before


def test_pipelined_requests_are_answered_in_order(http_at: str) -> None:
    host, _, port = http_at.rpartition(":")
    sent = b""
    for number in range(20):
        body = json.dumps(request(X, id=str(number))).encode()
        sent += (
            f"POST /v2/models/relu/infer HTTP/1.1\r\nHost: {http_at}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{'Connection: close' if number == 19 else 'X: y'}\r\n\r\n"
        ).encode() + body
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(sent)
        answer = b""
        while data := peer.recv(65536):
            answer += data
    ids = [json.loads(b"{" + part.partition(b"{")[2])["id"] for part in answer.split(b"HTTP/")[1:]]
    assert ids == [str(number) for number in range(20)]


def test_codings_go_both_ways(http: HTTPConnection) -> None:
    import gzip
    import zlib

    x = np.linspace(-1, 1, 9_000, dtype=np.float32)
    body = json.dumps(request(x)).encode()
    for coding, code, back in (
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ):
        status, headers, answer = said(
            http,
            "POST",
            "/v2/models/wide/infer",
            code(body),
            Content_Encoding=coding,
            Accept_Encoding=coding,
        )
        assert (status, headers["content-encoding"]) == (200, coding)
        data = json.loads(back(answer))["outputs"][0]["data"]
        np.testing.assert_allclose(data, x.clip(0), rtol=1e-6)


def test_statistics_and_index_count_what_came(http: HTTPConnection) -> None:
    def count() -> int:
        stats = json.loads(said(http, "GET", "/v2/models/relu/stats")[2])["model_stats"]
        return sum(entry["inference_count"] for entry in stats)

    before = count()
    said(http, "POST", "/v2/models/relu/infer", request(np.ones((3, 3))))
    assert count() == before + 3
    status, _, body = said(http, "POST", "/v2/repository/index", {})
    states = {entry["name"]: (entry["state"], entry["reason"]) for entry in json.loads(body)}
    assert (status, states["relu"]) == (200, ("READY", ""))
    assert states["broken"][0] == "UNAVAILABLE"
    assert "Git LFS" in states["broken"][1]


def test_the_other_door_knows_what_was_registered_at_this_one(
    http: HTTPConnection, client: Any
) -> None:
    x = np.linspace(-1, 1, 9_000, dtype=np.float32)
    size = x.nbytes
    region = shm.create_shared_memory_region("both", f"/laxity-test-{time.time_ns()}", 2 * size)
    try:
        shm.set_shared_memory_region(region, [x])
        key = region._shm_key
        client.register_system_shared_memory("both", key, 2 * size)
        listed = json.loads(said(http, "GET", "/v2/systemsharedmemory/status")[2])
        assert [entry["name"] for entry in listed] == ["both"]
        tensor: dict[str, Any] = {"name": "x", "shape": [9_000], "datatype": "FP32"}
        where = {"shared_memory_region": "both", "shared_memory_byte_size": size}
        tensor["parameters"] = where
        wanted = [{"name": "y", "parameters": {**where, "shared_memory_offset": size}}]
        body = {"inputs": [tensor], "outputs": wanted}
        status, _, answer = said(http, "POST", "/v2/models/wide/infer", body)
        assert status == 200, answer
        assert "data" not in json.loads(answer)["outputs"][0]
        found = shm.get_contents_as_numpy(region, np.float32, [9_000], size)
        np.testing.assert_array_equal(found, x.clip(0))
        beyond = {**where, "shared_memory_offset": size + 1}
        body["outputs"] = [{"name": "y", "parameters": beyond}]
        assert said(http, "POST", "/v2/models/wide/infer", body)[0] == 400
        client.unregister_system_shared_memory("both")
        assert said(http, "GET", "/v2/systemsharedmemory/region/both/status")[0] == 400
    finally:
        shm.destroy_shared_memory_region(region)

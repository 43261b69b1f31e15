"""How soon after its deadline a request hears that it expired, while its device is stuck.

    python -m benchmarks.expiry --json FILE [--rounds N]

In each round the worker is stopped (SIGSTOP), as if in an endless batch, and two clients of a door
ask at the same time, with deadlines of 40 to 60 ms that the scheduler believes it can meet. The
figures are the times at which they heard of the expiry, relative to the deadlines that they had
set, in milliseconds; negative means before. Between rounds the worker does ordinary work, so that
its learned latencies stay the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from benchmarks.doors import binary_body
from benchmarks.figures import write_figures
from benchmarks.noop import make_models
from benchmarks.overhead import SMALL
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client, LaxityError

CALLERS = 2
BUDGETS_MS = (40.0, 60.0)
GIVE_UP_S = 5.0

CALM_REQUESTS = 60

Ask = Callable[[float], str]
"""Asks with a budget in milliseconds; returns the outcome."""

Door = Callable[[], contextlib.AbstractContextManager[Ask]]
"""Makes a client."""


@contextlib.contextmanager
def native(url: str) -> Iterator[Ask]:
    """Ask through the Python client, which also watches the deadline itself."""
    with Client(url) as client:

        def ask(budget_ms: float) -> str:
            try:
                client.infer("noop", {"x": SMALL}, deadline_ms=budget_ms)
            except LaxityError as error:
                return error.code
            return "completed"

        yield ask


@contextlib.contextmanager
def http(port: int) -> Iterator[Ask]:
    """Ask over HTTP, with a new connection for each request."""
    body, headers = binary_body(SMALL)

    def ask(budget_ms: float) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_S) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines = [
                "POST /v2/models/noop/infer HTTP/1.1",
                "Host: localhost",
                f"Content-Length: {len(body)}",
                f"x-request-timeout-ms: {budget_ms:.3f}",
                *headers,
            ]
            peer.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            status = peer.recv(65536)[9:12].decode()
            return {"200": "completed", "504": "expired"}.get(status, status)

    yield ask


@contextlib.contextmanager
def over_grpc(port: int) -> Iterator[Ask]:
    """Ask with `parameters.timeout`, so that the client's own library does not end the call."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = stubs.GRPCInferenceServiceStub(channel)
        tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 16])

        def ask(budget_ms: float) -> str:
            request = pb.ModelInferRequest(
                model_name="noop", inputs=[tensor], raw_input_contents=[SMALL.tobytes()]
            )
            request.parameters["timeout"].int64_param = int(budget_ms * 1e3)
            try:
                stub.ModelInfer(request, timeout=GIVE_UP_S)
            except grpc.RpcError as error:
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                return "expired" if late else error.code().name
            return "completed"

        yield ask


def heard(ask: Ask, budget_ms: float) -> tuple[str, float]:
    """The outcome, and how long after the deadline it was heard, in milliseconds."""
    start_s = time.perf_counter()
    outcome = ask(budget_ms)
    return outcome, (time.perf_counter() - start_s) * 1e3 - budget_ms


def measure(door: Door, rounds: int, pid: int) -> dict[str, Any]:
    """The figures of one door."""
    chance = random.Random(1)
    outcomes: Counter[str] = Counter()
    late_ms: list[float] = []
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(CALLERS) as pool:
        asks = [stack.enter_context(door()) for _ in range(CALLERS)]
        for _ in range(rounds):
            for _ in range(CALM_REQUESTS):
                asks[0](1e3)
            budgets_ms = [chance.uniform(*BUDGETS_MS) for _ in asks]
            with stopped(pid):
                answers = list(pool.map(heard, asks, budgets_ms))
            outcomes.update(outcome for outcome, _ in answers)
            late_ms += [ms for outcome, ms in answers if outcome == "expired"]
    late_ms.sort()
    return {
        "outcomes": dict(outcomes),
        "p50_ms": round(statistics.median(late_ms), 2),
        "p99_ms": round(late_ms[int(0.99 * len(late_ms))], 2),
        "worst_ms": round(late_ms[-1], 2),
    }


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def main() -> None:
    """Measure every door."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of two requests, per door")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder / "models")
        web, rpc = free_port(), free_port()
        listen = {"http": f"127.0.0.1:{web}", "grpc": f"127.0.0.1:{rpc}"}
        with spawned_agent(folder, folder / "models", listen=listen) as url:
            with Client(url) as client:
                (target,) = client.status()["targets"]
            doors: dict[str, Door] = {
                "native": lambda: native(url),
                "http": lambda: http(web),
                "grpc": lambda: over_grpc(rpc),
            }
            figures = {}
            for door, make in doors.items():
                figures[door] = measure(make, given.rounds, target["pid"])
                print(door, figures[door], file=sys.stderr)
    write_figures(figures, given.json)


if __name__ == "__main__":
    main()

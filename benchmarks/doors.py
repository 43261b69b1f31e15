"""The cost of each door, compared with Ray Serve HTTP, LitServe and mosec in the same run.

    python -m benchmarks.doors --json FILE [--only NAME,…]

A no-op model (the first element of its input) is asked with 64 bytes and with 600 KB, one request
at a time (p50), and with 64 in flight. All HTTP contenders are asked by the same bare client on a
kept-alive connection, whose own cost is small and the same for all; gRPC is asked through
tritonclient's stubs. The large tensor is sent as binary data, and also through shared memory.

The handlers of mosec and Ray Serve take the tensor's bytes as the body and return four bytes.
LitServe takes only JSON, so it gets them in base64.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import write_figures
from benchmarks.noop import make_models
from benchmarks.other_servers import LITSERVE, MOSEC, RAY_SERVE, program
from benchmarks.overhead import IN_FLIGHT, LARGE, SMALL, p50_ms
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent

SECONDS = 4.0
READY_S = 60


class BareHttp:
    """A connection that sends the same request repeatedly, and checks the status."""

    def __init__(self, port: int, path: str, body: bytes, *headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        self._request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self._answer = b""

    def __call__(self) -> None:
        """Send one request and read its answer."""
        self.send()
        while not self.receive():
            pass

    def send(self) -> None:
        """Send the request."""
        self._answer = b""
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Read available data, and return whether the answer is complete."""
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the server hung up")
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self._answer[:500])
        low = head.lower()
        place = low.index(b"content-length:") + 15
        return len(body) >= int(low[place:].split(b"\r\n", 1)[0])

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def throughput(connect: Callable[[], BareHttp]) -> float:
    """Requests per second over `IN_FLIGHT` connections, each with one request at a time."""
    count = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(IN_FLIGHT):
            peer = connect()
            selector.register(peer.socket, selectors.EVENT_READ, peer)
            peer.send()
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for key, _ in selector.select():
                if key.data.receive():
                    count += 1
                    key.data.send()
        for key in list(selector.get_map().values()):
            key.data.close()
    return count / SECONDS


def threads_throughput(connect: Callable[[], Any]) -> float:
    """The same with a thread per connection, for clients that can only block."""
    counts = [0] * IN_FLIGHT
    barrier = threading.Barrier(IN_FLIGHT)
    end = [0.0]

    def run(index: int) -> None:
        ask = connect()
        ask()
        if barrier.wait() == 0:
            end[0] = time.perf_counter() + SECONDS
        barrier.wait()
        while time.perf_counter() < end[0]:
            ask()
            counts[index] += 1
        ask.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def over_http(port: int, path: str, body_of: Callable[[Any], tuple[bytes, tuple[str, ...]]]) -> Any:
    """The figures of one HTTP contender."""

    def connect(tensor: Any) -> BareHttp:
        body, headers = body_of(tensor)
        return BareHttp(port, path, body, *headers)

    return {
        "small_p50_ms": p50_ms(connect(SMALL)),
        "large_p50_ms": p50_ms(connect(LARGE)),
        "small_per_s": throughput(lambda: connect(SMALL)),
        "large_per_s": throughput(lambda: connect(LARGE)),
    }


# -- laxity


def binary_body(tensor: Any) -> tuple[bytes, tuple[str, ...]]:
    """A request of the Open Inference Protocol, with the tensor as binary data."""
    described = {"name": "x", "shape": [1, len(tensor)], "datatype": "FP32"}
    parameters = {"binary_data_size": tensor.nbytes}
    said = {
        "inputs": [{**described, "parameters": parameters}],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(said).encode()
    return head + tensor.tobytes(), (f"Inference-Header-Content-Length: {len(head)}",)


def json_body(tensor: Any) -> tuple[bytes, tuple[str, ...]]:
    """The same in JSON only."""
    described = {"name": "x", "shape": [1, len(tensor)], "datatype": "FP32"}
    return json.dumps({"inputs": [{**described, "data": tensor.tolist()}]}).encode(), ()


@contextlib.contextmanager
def shared_region(port: int) -> Iterator[Callable[[Any], tuple[bytes, tuple[str, ...]]]]:
    """Register a shared region; yield a function that makes requests which refer to it."""
    from http.client import HTTPConnection

    path = Path(f"/dev/shm/laxity-bench-{os.getpid()}")
    path.write_bytes(LARGE.tobytes())
    http = HTTPConnection("127.0.0.1", port)
    where = json.dumps({"key": path.name, "byte_size": LARGE.nbytes})
    http.request("POST", "/v2/systemsharedmemory/region/bench/register", where)
    if http.getresponse().status != 200:
        raise RuntimeError("the region could not be registered")

    def body(tensor: Any) -> tuple[bytes, tuple[str, ...]]:
        described = {"name": "x", "shape": [1, len(tensor)], "datatype": "FP32"}
        place = {"shared_memory_region": "bench", "shared_memory_byte_size": tensor.nbytes}
        return json.dumps({"inputs": [{**described, "parameters": place}]}).encode(), ()

    try:
        yield body
    finally:
        path.unlink()


def over_grpc(port: int) -> Any:
    """The figures of the gRPC door, with tritonclient's stubs."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    class Call:
        def __init__(self, tensor: Any) -> None:
            options = [("grpc.use_local_subchannel_pool", 1)]
            self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
            self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer
            self._message = service_pb2.ModelInferRequest(model_name="noop")
            self._message.inputs.add(name="x", datatype="FP32", shape=[1, len(tensor)])
            self._message.raw_input_contents.append(tensor.tobytes())

        def __call__(self) -> None:
            self._infer(self._message)

        def close(self) -> None:
            self._channel.close()

    return {
        "small_p50_ms": p50_ms(Call(SMALL)),
        "large_p50_ms": p50_ms(Call(LARGE)),
        "small_per_s": threads_throughput(lambda: Call(SMALL)),
        "large_per_s": threads_throughput(lambda: Call(LARGE)),
    }


def measure_laxity(folder: Path) -> Any:
    """The figures of every door of a real agent."""
    from scheduler import Client

    make_models(folder / "models")
    http_port, grpc_port = free_port(), free_port()
    listen = {"http": f"127.0.0.1:{http_port}", "grpc": f"127.0.0.1:{grpc_port}"}
    path = "/v2/models/noop/infer"
    with spawned_agent(
        folder,
        folder / "models",
        listen=listen,
        doors={"shared_memory": True, "default_deadline_ms": 600_000},
    ) as url:
        with Client(url) as client:
            figures = {
                "laxity native": {
                    "small_p50_ms": p50_ms(
                        lambda: client.infer("noop", {"x": SMALL}, deadline_ms=5000)
                    ),
                    "large_p50_ms": p50_ms(
                        lambda: client.infer("noop", {"x": LARGE}, deadline_ms=5000)
                    ),
                }
            }
        figures["laxity http"] = over_http(http_port, path, binary_body)
        figures["laxity http json"] = {
            "small_p50_ms": p50_ms(BareHttp(http_port, path, json_body(SMALL)[0]))
        }
        with shared_region(http_port) as region:
            body, _ = region(LARGE)
            figures["laxity http shared memory"] = {
                "large_p50_ms": p50_ms(BareHttp(http_port, path, body)),
                "large_per_s": throughput(lambda: BareHttp(http_port, path, body)),
            }
        figures["laxity grpc"] = over_grpc(grpc_port)
    return figures


# -- others


def bytes_body(tensor: Any) -> tuple[bytes, tuple[str, ...]]:
    """The tensor's bytes as the body."""
    return tensor.tobytes(), ("Content-Type: application/octet-stream",)


def base64_body(tensor: Any) -> tuple[bytes, tuple[str, ...]]:
    """The tensor's bytes in JSON, as base64."""
    text = base64.b64encode(tensor.tobytes()).decode()
    return json.dumps({"x": text}).encode(), ("Content-Type: application/json",)


def measure_program(
    folder: Path,
    text: str,
    path: str,
    arguments: tuple[str, ...] = (),
    body_of: Callable[[Any], tuple[bytes, tuple[str, ...]]] = bytes_body,
) -> Any:
    """The figures of another server; `{port}` in its text or arguments stands for its port."""
    port = free_port()
    filled = text.replace("{port}", str(port)).replace("{{", "{").replace("}}", "}")
    with program(folder, filled, *(a.replace("{port}", str(port)) for a in arguments)):
        end_s = time.monotonic() + READY_S
        while True:
            try:
                body, headers = body_of(SMALL)
                BareHttp(port, path, body, *headers)()
                break
            except (OSError, RuntimeError, StopIteration):
                if time.monotonic() > end_s:
                    raise RuntimeError((folder / "contender.log").read_text()[-2000:]) from None
                time.sleep(0.2)
        return over_http(port, path, body_of)


def contenders(folder: Path) -> dict[str, Callable[[], Any]]:
    """The functions that measure each contender, by name."""
    mosec = ("--address", "127.0.0.1", "--port", "{port}", "--max-body-size", "10000000")
    return {
        "laxity": lambda: measure_laxity(folder),
        "mosec": lambda: measure_program(folder, MOSEC, "/inference", mosec),
        "litserve": lambda: measure_program(folder, LITSERVE, "/predict", (), base64_body),
        "ray serve http": lambda: measure_program(folder, RAY_SERVE, "/"),
    }


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="the cost of each door")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--only", help="names, separated by commas")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"load_before": os.getloadavg()}
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        folder = Path(name)
        for contender, measure in contenders(folder).items():
            if arguments.only and contender not in arguments.only.split(","):
                continue
            try:
                figures = measure()
            except (RuntimeError, ImportError) as error:
                print(f"{contender} could not be measured: {error}", file=sys.stderr)
                continue
            rows.update(figures if contender == "laxity" else {contender: figures})
    keys = ("small_p50_ms", "large_p50_ms", "small_per_s", "large_per_s")
    print(f"{'':28}" + "".join(f"{key:>15}" for key in keys))
    for row, figures in rows.items():
        cells = (f"{figures[key]:.3f}" if key in figures else "" for key in keys)
        print(f"{row:28}" + "".join(f"{cell:>15}" for cell in cells))
    if arguments.json:
        write_figures({**found, **rows}, arguments.json)


if __name__ == "__main__":
    main()

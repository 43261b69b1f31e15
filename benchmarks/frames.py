"""What large inputs and outputs cost, such as frames: latency, and CPU time of each process.

    python -m benchmarks.frames --json FILE

A no-op model (the first element of its input) is asked with images of three sizes, one request at a
time: over the unix socket, from whose clients workers read the inputs where they are; over TCP,
where inputs are received once; and over HTTP, where a door passes them on. `copy_ms` is how long
this process takes to copy the image, and `small_ms` a request of 64 bytes over the same way.
`in_flight_per_s` is how many images a second pass over the unix socket with four in flight.
`beside` is the latency of such small requests over the unix socket, alone and beside four cameras
of 30 full-HD frames per second. `outputs` are answers of the first two sizes to a request of one
byte.

CPU times are milliseconds per request, of the client, the scheduler, the worker and the doors.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.doors import BareHttp, binary_body
from benchmarks.figures import write_figures
from benchmarks.noop import make_models, make_source
from benchmarks.overhead import SMALL, p50_ms, throughput
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client

IMAGES = {"640x640 RGB": 1_228_800, "full HD RGB": 6_220_800, "4K RGB": 24_883_200}
REPEATS = 200
CAMERAS = 4
FRAME_S = 1 / 30
BESIDE = 3_000
PROCESSES = {"ray::SchedulerProcess": "scheduler", "ray::WorkerProcess": "worker", "http-0": "door"}

Ask = Callable[[], object]


def cpu_s() -> dict[str, float]:
    """The CPU time so far of this process and of the box's."""
    found = {"client": _cpu_s(psutil.Process())}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            for word, name in PROCESSES.items():
                if word in command:
                    found[name] = found.get(name, 0.0) + _cpu_s(process)
    return found


def _cpu_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def costs(ask: Ask) -> dict[str, Any]:
    """Median latency and CPU time per request."""
    for _ in range(10):
        ask()
    before = cpu_s()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - start)
    after = cpu_s()
    used = {name: 1e3 * (after[name] - before[name]) / REPEATS for name in before}
    return {"p50_ms": 1e3 * statistics.median(seconds), "cpu_ms": used}


def by_native(client: Client, x: np.ndarray[Any, Any]) -> Ask:
    """A request through the Python client."""
    return lambda: client.infer("noop", {"x": x}, deadline_ms=5_000)


def in_flight(client: Client, x: np.ndarray[Any, Any]) -> float:
    """Requests per second with a few in flight."""
    return throughput(
        lambda: client.submit("noop", {"x": x}, deadline_ms=5_000),
        lambda future: future.result(),
        5 * REPEATS,
        CAMERAS,
    )


def source(client: Client, name: str) -> Ask:
    """A request for a large output."""
    x = np.zeros(1, np.uint8)
    return lambda: client.infer(name, {"x": x}, deadline_ms=5_000)["y"]


def by_http(port: int, x: np.ndarray[Any, Any]) -> Ask:
    """A request over HTTP with binary data."""
    body, headers = binary_body(x)
    return BareHttp(port, "/v2/models/noop/infer", body, *headers)


@contextlib.contextmanager
def cameras(url: str) -> Iterator[None]:
    """Full-HD frames at 30 per second from each camera."""
    x = np.zeros(IMAGES["full HD RGB"] // 4, np.float32)
    stop = threading.Event()

    def send() -> None:
        with Client(url) as client:
            due_s = time.monotonic()
            while not stop.is_set():
                client.infer("noop", {"x": x}, deadline_ms=5_000)
                due_s = max(due_s + FRAME_S, time.monotonic() - FRAME_S)
                stop.wait(due_s - time.monotonic())

    threads = [threading.Thread(target=send) for _ in range(CAMERAS)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def beside(ask: Ask) -> dict[str, float]:
    """The median and the 99th percentile of the latency of a small request."""
    seconds = []
    for _ in range(BESIDE):
        start = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - start)
    return {
        "p50_ms": 1e3 * statistics.median(seconds),
        "p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
    }


def measure(folder: Path) -> dict[str, Any]:
    """All figures."""
    native, http = free_port(), free_port()
    make_models(folder / "models")
    outputs = {"640x640 RGB": "source-1", "full HD RGB": "source-6"}
    for name, model in outputs.items():
        make_source(folder / "models", model, IMAGES[name])
    listen: dict[str, str | list[str]] = {
        "native": [f"unix://{folder}/bench.sock", f"tcp://127.0.0.1:{native}"],
        "http": f"127.0.0.1:{http}",
    }
    found: dict[str, Any] = {}
    with spawned_agent(folder, folder / "models", listen=listen) as url, Client(url) as client:
        with Client(f"tcp://127.0.0.1:{native}") as far:
            ways: dict[str, Callable[[np.ndarray[Any, Any]], Ask]] = {
                "unix": lambda x: by_native(client, x),
                "tcp": lambda x: by_native(far, x),
                "http": lambda x: by_http(http, x),
            }
            for way, made in ways.items():
                found[way] = {"small_ms": p50_ms(made(SMALL), 1_000)}
                for name, size in IMAGES.items():
                    found[way][name] = costs(made(np.zeros(size // 4, np.float32)))
            found["outputs"] = {
                way: {name: costs(source(at, model)) for name, model in outputs.items()}
                for way, at in (("unix", client), ("tcp", far))
            }
        found["in_flight_per_s"] = {
            name: in_flight(client, np.zeros(size // 4, np.float32))
            for name, size in IMAGES.items()
        }
        found["beside"] = {"alone": beside(by_native(client, SMALL))}
        with cameras(url):
            found["beside"]["cameras"] = beside(by_native(client, SMALL))
    found["copy_ms"] = {}
    for name, size in IMAGES.items():
        there, here = np.zeros(size, np.uint8), np.ones(size, np.uint8)
        found["copy_ms"][name] = p50_ms(lambda: np.copyto(there, here), REPEATS)  # noqa: B023
    return found


def main() -> None:
    """Measure, and write or print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        write_figures(measure(Path(name)), arguments.json)


if __name__ == "__main__":
    main()

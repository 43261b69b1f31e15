"""The link to a worker compared with a Ray Compiled Graph: latency and idle CPU use.

    python -m benchmarks.worker_link --json FILE

Both are driven from a uvloop event loop, as in the scheduler, one batch at a time: 64 bytes and 600
KB in, 4 bytes out. `idle_cpu_percent` is the share of a core that the worker's process uses while
idle; `waiting_cpu_percent` is the share that the scheduler's side uses while a batch of half a
second runs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from benchmarks.figures import write_figures
from scheduler.core.commands import Dispatch
from scheduler.core.requests import RequestClass
from scheduler.daemon.submission import Submission
from scheduler.daemon.worker_link import WorkerLink
from workers.link_server import LinkServer

SIZES = {"small": 16, "large": 150_000}
WARM_UP = 300
REPEATS = 3_000
IDLE_S = 2.0
BUSY_S = 0.5

Step = Callable[[int], Awaitable[Any]]
"""Sends one batch of that many float32 and waits for the answer."""


class FirstElement:
    """A host whose models return the first element of the input; `busy` takes `BUSY_S`."""

    def run(self, model: str, _variant: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return one output per item."""
        if model == "busy":
            time.sleep(BUSY_S)
        return [{"y": item["x"][:1]} for item in items]


async def medians_us(step: Step) -> dict[str, float]:
    """The median time of a step for each size, in microseconds."""
    found = {}
    for name, size in SIZES.items():
        seconds = []
        for _ in range(WARM_UP + REPEATS):
            start = time.perf_counter()
            await step(size)
            seconds.append(time.perf_counter() - start)
        found[f"{name}_p50_us"] = statistics.median(seconds[WARM_UP:]) * 1e6
    return found


def cpu_percent(pid: int, seconds: float) -> float:
    """The share of one core that a process uses over some time, in percent."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return 100 * (sum(process.cpu_times()[:2]) - before) / seconds


class Listener:
    """Listens to a link and resolves the future of the batch in flight."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_done(self, _run: int, results: list[Any], _execute_ns: int) -> None:
        self.answer.set_result(results)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


def submission(size: int) -> Submission:
    """One request with a vector of `size` float32."""
    body, specs = memoryview(bytes(4 * size)), [["x", "float32", [size]]]
    return Submission(RequestClass("first"), specs, body, 0, 3, 1.0, False, lambda _: None)


def serve_link(path: Path) -> None:
    """Run a worker in this process."""
    LinkServer(path, FirstElement()).serve_forever()


async def through_link(path: Path, pid: int) -> dict[str, float]:
    """Figures of `workers.link`."""
    loop = asyncio.get_running_loop()
    listener = Listener()
    link = WorkerLink("cpu:0", path, listener)  # type: ignore[arg-type]
    keeping = loop.create_task(link.keep_connected())
    while link.pid is None:
        await asyncio.sleep(0.001)
    batches = {size: [submission(size)] for size in SIZES.values()}
    latest_ns = time.monotonic_ns() + 10**12

    async def step(size: int, model: str = "first") -> None:
        listener.answer = loop.create_future()
        dispatch = Dispatch(1, "cpu:0", model, "v", (1,), latest_ns, "")
        link.run(dispatch, batches[size])
        await listener.answer

    found = await medians_us(step)
    found["idle_cpu_percent"] = await asyncio.to_thread(cpu_percent, pid, IDLE_S)
    before = time.process_time()
    await step(SIZES["small"], "busy")
    found["waiting_cpu_percent"] = 100 * (time.process_time() - before) / BUSY_S
    keeping.cancel()
    link.close()
    return found


def measure_link() -> dict[str, float]:
    """Measure the link, with the worker's end in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        worker = multiprocessing.get_context("spawn").Process(target=serve_link, args=(path,))
        worker.start()
        try:
            assert worker.pid is not None
            return uvloop.run(through_link(path, worker.pid))
        finally:
            worker.kill()
            worker.join()


async def through_graph(graph: Any, pid: int) -> dict[str, float]:
    """Figures of a compiled graph, with its blocking `get` in a thread beside the event loop."""
    import ray

    loop = asyncio.get_running_loop()
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def collect() -> None:
        while (entry := waiting.get()) is not None:
            reference, future = entry
            loop.call_soon_threadsafe(future.set_result, ray.get(reference))

    collector = threading.Thread(target=collect)
    collector.start()

    async def step(size: int, model: str = "first") -> None:
        future = loop.create_future()
        waiting.put((graph.execute((model, bytes(4 * size))), future))
        await future

    found = await medians_us(step)
    found["idle_cpu_percent"] = await asyncio.to_thread(cpu_percent, pid, IDLE_S)
    before = time.process_time()
    await step(SIZES["small"], "busy")
    found["waiting_cpu_percent"] = 100 * (time.process_time() - before) / BUSY_S
    waiting.put(None)
    collector.join()
    return found


def measure_graph() -> dict[str, float]:
    """Measure a Ray actor behind a compiled graph, with bytes, which pass faster than arrays."""
    import os

    import ray
    from ray.dag import InputNode

    @ray.remote(num_cpus=0)
    class Worker:
        def run(self, batch: tuple[str, bytes]) -> bytes:
            model, body = batch
            if model == "busy":
                time.sleep(BUSY_S)
            return np.frombuffer(body, np.float32)[:1].tobytes()

        def pid(self) -> int:
            return os.getpid()

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        worker = Worker.remote()  # type: ignore[attr-defined]
        pid = ray.get(worker.pid.remote())
        with InputNode() as batch:
            bound = worker.run.bind(batch)
        graph = bound.experimental_compile(_buffer_size_bytes=2_000_000)
        return uvloop.run(through_graph(graph, pid))
    finally:
        ray.shutdown()


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="the worker link compared with a compiled graph")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    found = {"link": measure_link(), "compiled_graph": measure_graph()}
    print(f"{'':22}" + "".join(f"{contender:>18}" for contender in found))
    for key in found["link"]:
        print(f"{key:22}" + "".join(f"{figures[key]:18.1f}" for figures in found.values()))
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

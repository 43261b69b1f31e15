"""What laxity adds to a bare inference, compared with a Ray Serve handle in the same run.

    python -m benchmarks.overhead --json FILE

A no-op model (the first element of its input) is asked through the Python API over the unix socket,
and the same no-op through a Ray Serve deployment handle: one request at a time with 64 bytes and
with 600 KB of input, and 64 requests in flight. `echo` returns the 600 KB, so the large tensor
travels both ways.

The JSON file has `laxity` and `ray_serve_handle`, each with `small_p50_ms`, `large_p50_ms`,
`large_echo_p50_ms` and `throughput_per_s`; `bare` is the no-op model in this process, without any
server; `ratio` is Ray Serve over laxity (throughput: laxity over Ray Serve).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import print_contenders, write_figures
from benchmarks.noop import make_models
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client

SMALL = np.zeros(16, np.float32)
LARGE = np.zeros(150_000, np.float32)
WARM_UP = 300
REPEATS = 3_000
IN_FLIGHT = 64
PIPELINED = 30_000

Call = Callable[[str, np.ndarray[Any, Any]], Any]
"""Asks a model for one input and waits for the answer."""


def p50_ms(ask: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median latency with one request at a time, in milliseconds."""
    for _ in range(WARM_UP):
        ask()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


def latencies(call: Call) -> dict[str, float]:
    """The median latencies of one contender."""
    return {
        "small_p50_ms": p50_ms(lambda: call("noop", SMALL)),
        "large_p50_ms": p50_ms(lambda: call("noop", LARGE)),
        "large_echo_p50_ms": p50_ms(lambda: call("echo", LARGE)),
    }


def throughput(
    submit: Callable[[], Any], result: Callable[[Any], Any], count: int, most: int = IN_FLIGHT
) -> float:
    """Requests per second with at most so many in flight."""
    waiting: deque[Any] = deque()
    start = time.perf_counter()
    for _ in range(count):
        if len(waiting) == most:
            result(waiting.popleft())
        waiting.append(submit())
    while waiting:
        result(waiting.popleft())
    return count / (time.perf_counter() - start)


def figures(call: Call, submit: Callable[[], Any], result: Callable[[Any], Any], count: int) -> Any:
    """All figures of one contender."""
    return {**latencies(call), "throughput_per_s": throughput(submit, result, count)}


def measure_laxity(folder: Path) -> Any:
    """The figures of the Python API over the unix socket of a real agent."""
    with spawned_agent(folder, folder / "models") as url, Client(url) as client:
        return figures(
            lambda model, x: client.infer(model, {"x": x}, deadline_ms=1000),
            lambda: client.submit("noop", {"x": SMALL}, deadline_ms=5000),
            lambda future: future.result(),
            PIPELINED,
        )


def measure_ray_serve() -> Any:
    """The figures of a Ray Serve deployment handle, with the leanest options it has."""
    import ray
    from ray import serve

    @serve.deployment(num_replicas=1, max_ongoing_requests=2 * IN_FLIGHT)
    class Noop:
        async def __call__(self, model: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return x if model == "echo" else x[:1]

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        handle = serve.run(Noop.bind(), route_prefix=None)  # type: ignore[attr-defined]
        return figures(
            lambda model, x: handle.remote(model, x).result(),
            lambda: handle.remote("noop", SMALL),
            lambda response: response.result(),
            PIPELINED // 10,
        )
    finally:
        serve.shutdown()
        ray.shutdown()


def measure_bare(folder: Path) -> Any:
    """The figures of the no-op models in this process, without any server."""
    import onnxruntime

    sessions = {
        name: onnxruntime.InferenceSession(folder / "models" / name / "1" / "model.onnx")
        for name in ("noop", "echo")
    }

    def call(model: str, x: np.ndarray[Any, Any]) -> Any:
        return sessions[model].run(None, {"x": x[None]})

    return latencies(call)


def ratios(laxity: Any, other: Any) -> Any:
    """How many times better laxity is in each figure."""
    return {
        key: laxity[key] / other[key] if key.endswith("per_s") else other[key] / laxity[key]
        for key in laxity
    }


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="overhead over a bare inference")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        folder = Path(name)
        make_models(folder / "models")
        found = {
            "bare": measure_bare(folder),
            "laxity": measure_laxity(folder),
            "ray_serve_handle": measure_ray_serve(),
        }
    found["ratio"] = ratios(found["laxity"], found["ray_serve_handle"])
    print_contenders(found, found["laxity"])
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

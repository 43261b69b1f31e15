"""What a box holds after a while: memory, files and threads of each of its processes.

    python -m benchmarks.soak [--minutes N] [--json FILE]

Callers of all kinds use one box at the same time, at a load that it can carry: clients that stay,
that come and go, and that disconnect without waiting; HTTP and gRPC; durable tasks; requests that
are cancelled, refused, invalid, or answered by the cache. Growth is measured in the second half of
the time, when a leak still grows but a buffer that only had to fill up does not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton
from numpy.typing import NDArray

from benchmarks.figures import write_figures
from benchmarks.ports import free_port
from benchmarks.spawned_agent import MODELS, spawned_agent
from scheduler import Client, LaxityError

SAMPLE_S = 5.0
IMAGES = 50
"""The number of different images that are sent repeatedly, besides those sent only once."""


@dataclass(frozen=True)
class Box:
    """The addresses of a box's doors."""

    native: str
    http: int
    grpc: int


Act = Callable[[random.Random], str]
"""Sends one request; returns how it ended."""

Caller = Callable[[Box], contextlib.AbstractContextManager[Act]]
"""Makes a caller of a box."""


def image(rng: random.Random) -> NDArray[np.float32]:
    """An image, either from a small set or a new one."""
    seed = rng.randrange(IMAGES) if rng.random() < 0.5 else rng.getrandbits(60)
    return np.random.default_rng(seed).random((1, 8, 8), np.float32)


@contextlib.contextmanager
def steady(box: Box) -> Iterator[Act]:
    """One client for all requests; some have tiny budgets, are invalid, or are cancelled."""
    with Client(box.native) as client:

        def ask(rng: random.Random) -> str:
            name = "digits" if rng.random() < 0.98 else "no-such-model"
            budget_ms = rng.choice((0.05, 5, 20, 50, 100))
            future = client.submit(name, {"image": image(rng)}, deadline_ms=budget_ms)
            if rng.random() < 0.1:
                future.cancel()
            future.result()
            return "completed"

        yield ask


@contextlib.contextmanager
def passing(box: Box) -> Iterator[Act]:
    """A client per request; half of them disconnect before the answer."""

    def ask(rng: random.Random) -> str:
        with Client(box.native) as client:
            future = client.submit("digits", {"image": image(rng)}, deadline_ms=100)
            if rng.random() < 0.5:
                return "hung up"
            future.result()
        return "completed"

    yield ask


@contextlib.contextmanager
def tasks(box: Box) -> Iterator[Act]:
    """Durable tasks; half of their results are fetched."""
    with Client(box.native) as client:

        def ask(rng: random.Random) -> str:
            inputs = {"image": image(rng)}
            task = client.submit("digits", inputs, deadline_s=60, durable=True)
            if rng.random() < 0.5:
                return "submitted"
            task.result()
            return "completed"

        yield ask


@contextlib.contextmanager
def http(box: Box) -> Iterator[Act]:
    """A connection per request."""

    def ask(rng: random.Random) -> str:
        pixels = image(rng)
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, *pixels.shape]}
        body = json.dumps({"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}).encode()
        url = f"http://127.0.0.1:{box.http}/v2/models/digits/infer"
        headers = {"content-type": "application/json", "x-request-timeout-ms": "200"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as said:
            said.read()
        return "completed"

    yield ask


@contextlib.contextmanager
def grpc(box: Box) -> Iterator[Act]:
    """One channel for all requests."""
    with triton.InferenceServerClient(f"127.0.0.1:{box.grpc}") as client:

        def ask(rng: random.Random) -> str:
            tensor = triton.InferInput("image", [1, 1, 8, 8], "FP32")
            tensor.set_data_from_numpy(image(rng)[None])
            client.infer("digits", [tensor], client_timeout=rng.choice((0.001, 0.1, 1.0)))
            return "completed"

        yield ask


CALLERS = {steady: 200, passing: 10, tasks: 5, http: 30, grpc: 30}
"""The callers, and their requests per second."""


def call(box: Box, caller: Caller, per_s: float, end_s: float, counts: Counter[str]) -> None:
    """Send requests at random times until the end, without pauses when behind schedule."""
    rng = random.Random(caller.__name__)
    with caller(box) as act:
        at_s = time.monotonic()
        while time.monotonic() < end_s:
            at_s += rng.expovariate(per_s)
            time.sleep(max(0.0, at_s - time.monotonic()))
            try:
                ended = act(rng)
            except (LaxityError, CancelledError, OSError, triton.InferenceServerException) as error:
                ended = type(error).__name__
            counts[f"{caller.__name__}: {ended}"] += 1


def held() -> Iterator[tuple[str, dict[str, float]]]:
    """What each process of the box holds now, by name."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error), process.oneshot():
            words = [word for word in process.cmdline() if not word.startswith("-")]
            name = process.name() if process.name().startswith("ray::") else " ".join(words)[-40:]
            yield (
                f"{process.pid} {name.strip()}",
                {
                    "memory_mb": process.memory_full_info().uss / 1e6,
                    "files": process.num_fds(),
                    "threads": process.num_threads(),
                },
            )


def growth(samples: list[float]) -> float:
    """The growth in the second half: the median of the last quarter less that of the third."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) - median(samples[-2 * quarter : -quarter] or samples)


def soak(minutes: float) -> dict[str, dict[str, dict[str, float]]]:
    """Use a box for some time; by process and resource, return the amount and its growth."""
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts: Counter[str] = Counter()
    http_port, grpc_port = free_port(), free_port()
    listen = {"http": f"127.0.0.1:{http_port}", "grpc": f"127.0.0.1:{grpc_port}"}
    settings: dict[str, Any] = {
        "cache": {"ttl_s": 30},
        "durable": {"keep_results_s": 30},
        "journal": {"max_mb": 16},
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        spawned_agent(Path(folder), MODELS, listen=listen, **settings) as native,
    ):
        box = Box(native, http_port, grpc_port)
        end_s = time.monotonic() + 60 * minutes
        threads = [
            threading.Thread(target=call, args=(box, caller, per_s, end_s, counts))
            for caller, per_s in CALLERS.items()
        ]
        for thread in threads:
            thread.start()
        for number in itertools.count(1):
            time.sleep(SAMPLE_S)
            if time.monotonic() > end_s:
                break
            for name, amounts in held():
                for what, amount in amounts.items():
                    seen[name][what].append(amount)
            if number % 12 == 0:
                print(f"{number * SAMPLE_S / 60:.0f} of {minutes:g} min", file=sys.stderr)
        for thread in threads:
            thread.join()
    for ended, count in sorted(counts.items()):
        print(f"{count:>9,} {ended}", file=sys.stderr)
    return {
        name: {w: {"end": s[-1], "growth": growth(s)} for w, s in amounts.items()}
        for name, amounts in seen.items()
        if len(amounts["files"]) >= 8
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    figures = soak(args.minutes)
    for name, amounts in figures.items():
        shown = (f"{w} {a['end']:.1f} ({a['growth']:+.1f})" for w, a in amounts.items())
        print(f"{name:50} {', '.join(shown)}", file=sys.stderr)
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()

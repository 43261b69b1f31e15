"""The clouds of `benchmarks.spill`; each takes as long as the same emulated device."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cloud import spawned_cloud
from benchmarks.clouds import OtherCloud
from benchmarks.ports import free_port
from benchmarks.spawned_agent import prefer_all, spawned_agent

FAST = {"base_ms": 3.0, "per_item_ms": 1.0, "jitter": 0.02}
"""The latency of every cloud: 250 requests a second or more."""


def emulated(latency: dict[str, float]) -> list[dict[str, Any]]:
    """The configuration of an emulated device."""
    return [{"id": "cpu:0", "runtimes": ["emulated"], "options": latency}]


@contextlib.contextmanager
def laxity(folder: Path, models: Path, niceness: int) -> Iterator[str]:
    """Another agent; yields the URL of its gRPC door."""
    door = f"127.0.0.1:{free_port()}"
    with spawned_agent(folder, models, niceness, {"grpc": door}, devices=emulated(FAST)):
        yield f"grpc://{door}"


@contextlib.contextmanager
def serve(folder: Path, models: Path, niceness: int) -> Iterator[str]:
    """One replica of laxity's application on Ray Serve."""
    replicas = {"min": 1, "max": 1, "cpus": 0.5}
    devices = [{**device, "cpus": 0.5} for device in emulated(FAST)]
    with spawned_cloud(folder, models, replicas=replicas, devices=devices) as (port, _):
        prefer_all(json.loads((folder / "c/cloud.json").read_text())["pid"], niceness)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _other(name: str, folder: Path, niceness: int) -> Iterator[str]:
    cloud = OtherCloud(name, folder, [{"name": "noop", "latency": FAST}], niceness)
    try:
        cloud.start()
        yield f"grpc://{cloud.grpc}"
    finally:
        cloud.stop()


def triton(folder: Path, _: Path, niceness: int) -> contextlib.AbstractContextManager[str]:
    """Triton over gRPC; its model is a Python function that sleeps."""
    return _other("triton", folder, niceness)


def mlserver(folder: Path, _: Path, niceness: int) -> contextlib.AbstractContextManager[str]:
    """MLServer over gRPC; its runtime sleeps."""
    return _other("mlserver", folder, niceness)


CLOUDS: dict[str, Callable[[Path, Path, int], contextlib.AbstractContextManager[str]]] = {
    "laxity": laxity,
    "serve": serve,
    "triton": triton,
    "mlserver": mlserver,
}
"""By name, makes a context that yields the server's URL, from a folder, our models and a
niceness."""

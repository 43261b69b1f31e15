"""The overhead of laxity's cloud application over a bare box, and how soon it scales up.

    python -m benchmarks.cloud --json FILE

The bare HTTP client of `benchmarks.doors` asks the same no-op at the door of an `edge_agent`, at
`laxity cloud up` with one replica, and at Ray Serve with nothing behind it. Then 64 requests are
kept in flight until a second replica serves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.doors import (
    BareHttp,
    binary_body,
    measure_program,
    over_http,
    throughput,
)
from benchmarks.figures import write_figures
from benchmarks.noop import make_models
from benchmarks.other_servers import RAY_SERVE
from benchmarks.overhead import SMALL
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent

PATH = "/v2/models/noop/infer"
GROWN_S = 120.0


def laxity_cloud(command: str, config: Path, *options: str) -> str:
    """Run `laxity cloud` and return its output."""
    arguments = [sys.executable, "-m", "scheduler.cli", "cloud", command, "--config", str(config)]
    done = subprocess.run([*arguments, *options], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextlib.contextmanager
def spawned_cloud(folder: Path, models: Path, **settings: Any) -> Iterator[tuple[int, Path]]:
    """Run `laxity cloud up`, and `down` at the end of the block.

    Yields:
        The port of its HTTP door, and its configuration file.
    """
    port = free_port()
    config = {"http": f"127.0.0.1:{port}", "models": str(models), "state_dir": str(folder / "c")}
    file = folder / "cloud.yaml"
    file.write_text(yaml.safe_dump({**config, **settings}))
    laxity_cloud("up", file, "--detach")
    try:
        yield port, file
    finally:
        laxity_cloud("down", file)


def measure_edge(folder: Path) -> dict[str, float]:
    """The figures of a box's HTTP door."""
    port = free_port()
    with spawned_agent(folder, folder / "models", listen={"http": f"127.0.0.1:{port}"}):
        found: dict[str, float] = over_http(port, PATH, binary_body)
        return found


def measure_cloud(folder: Path) -> dict[str, float]:
    """The figures of one replica of the application."""
    replicas = {"min": 1, "max": 1}
    with spawned_cloud(folder, folder / "models", replicas=replicas) as (port, _):
        found: dict[str, float] = over_http(port, PATH, binary_body)
        return found


def measure_growth(folder: Path) -> dict[str, float]:
    """The seconds under load until a second replica serves."""
    halves = {"min": 1, "max": 2, "cpus": 0.5}
    devices = [{"id": "cpu:0", "cpus": 0.5}]
    body, headers = binary_body(SMALL)
    with spawned_cloud(folder, folder / "models", replicas=halves, devices=devices) as (port, file):
        grown = threading.Event()

        def load() -> None:
            while not grown.is_set():
                throughput(lambda: BareHttp(port, PATH, body, *headers))

        loading = threading.Thread(target=load)
        started_s = time.monotonic()
        loading.start()
        try:
            while time.monotonic() < started_s + GROWN_S:
                status = json.loads(laxity_cloud("status", file, "--json"))
                if status["replica_states"].get("RUNNING", 0) == 2:
                    return {"second_replica_s": round(time.monotonic() - started_s, 1)}
                time.sleep(1)
            raise RuntimeError(f"no second replica within {GROWN_S:g} s of load")
        finally:
            grown.set()
            loading.join()


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description="the cost of the cloud application")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    found: dict[str, Any] = {"load_before": os.getloadavg()}
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        folder = Path(name)
        make_models(folder / "models")
        found["edge http"] = measure_edge(folder)
        found["cloud http"] = measure_cloud(folder)
        found["ray serve http"] = measure_program(folder, RAY_SERVE, "/")
        found["growth"] = measure_growth(folder)
    write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

"""How long a box takes to serve: from the command to the first result.

    python -m benchmarks.start --json FILE [--rounds N]

In turn, each time with nothing running before:

* `first`: `edge_agent` without any profiles, on the models of `configs/models`;
* `again`: the same with the profiles of the first start, as after a crash or a reboot;
* `ray`: a Python program with Ray, until an actor's first answer, for comparison.

Each figure is the median of its rounds, in seconds, with the CPU time in seconds that the program
and all its child processes took until then. An agent is polled every tenth of a second for its
readiness.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil

from benchmarks.figures import write_figures
from benchmarks.spawned_agent import MODELS, spawned_agent
from scheduler import Client

RAY = """
import ray
ray.init(address="local", include_dashboard=False, logging_level="ERROR")

@ray.remote
class Answers:
    def answer(self):
        return 42

print(ray.get(Answers.remote().answer.remote()), flush=True)
input()
"""


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds to the first result, by program."""
    took: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            took["first"].append(_agent(Path(folder)))
            took["again"].append(_agent(Path(folder)))
        took["ray"].append(_ray())
    figures: dict[str, dict[str, float]] = {}
    for name, each in took.items():
        seconds, cpu_s = (statistics.median(column) for column in zip(*each, strict=True))
        figures[name] = {"seconds": seconds, "cpu_s": cpu_s}
    figures["again_of_ray"] = {
        key: figures["again"][key] / figures["ray"][key] for key in ("seconds", "cpu_s")
    }
    return figures


def _agent(folder: Path) -> tuple[float, float]:
    began_s = time.monotonic()
    with spawned_agent(folder, MODELS) as url:
        with Client(url) as client:
            client.infer("digits", {"image": np.zeros((1, 8, 8), np.float32)}, deadline_ms=10_000)
        return time.monotonic() - began_s, _cpu_s()


def _ray() -> tuple[float, float]:
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        if program.stdout.readline() != "42\n":
            raise RuntimeError("Ray did not start")
        took = time.monotonic() - began_s, _cpu_s()
        program.communicate("\n")
    return took


def _cpu_s() -> float:
    """The CPU time of all descendants of this process, including their ended children."""
    each = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(t.user + t.system + t.children_user + t.children_system for t in each)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is started")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    write_figures(measure(args.rounds), args.json)


if __name__ == "__main__":
    main()

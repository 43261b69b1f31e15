"""What an idle box costs: CPU time and memory of each of its processes.

    python -m benchmarks.idle --json FILE [--seconds N]

A box with the models of `configs/models` and one door of each kind is left alone until its start-up
work is over, then observed. Memory is a process's private memory plus its share of shared memory
(PSS, of proc_pid_smaps(5)), in MB. CPU time is a share of one core, in per cent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.figures import write_figures
from benchmarks.ports import free_port
from benchmarks.spawned_agent import MODELS, spawned_agent

SETTLE_S = 20.0

_NAMES = {
    "edge_agent": "agent",
    "ray::SchedulerProcess": "scheduler",
    "ray::WorkerProcess": "worker",
    "http-0": "HTTP door",
    "grpc-0": "gRPC door",
}
"""Words in the command lines of laxity's processes; all others are Ray's."""


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """Measure memory and CPU time by process."""
    with tempfile.TemporaryDirectory() as folder:
        listen = {"http": f"127.0.0.1:{free_port()}", "grpc": f"127.0.0.1:{free_port()}"}
        with spawned_agent(Path(folder), MODELS, listen=listen):
            time.sleep(SETTLE_S)
            (agent,) = psutil.Process().children()
            box = [agent, *agent.children(recursive=True)]
            began_s = [_cpu_s(process) for process in box]
            time.sleep(seconds)
            figures: dict[str, dict[str, float]] = defaultdict(
                lambda: {"cpu_percent": 0.0, "pss_mb": 0.0}
            )
            for process, before_s in zip(box, began_s, strict=True):
                took = {
                    "cpu_percent": (_cpu_s(process) - before_s) / seconds * 100,
                    "pss_mb": process.memory_full_info().pss / 1e6,
                }
                for name in (_name_of(process), "all"):
                    for key, value in took.items():
                        figures[name][key] += value
            return dict(figures)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _name_of(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    return next((name for part, name in _NAMES.items() if part in line), "Ray's own")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to observe it")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    write_figures(measure(args.seconds), args.json)


if __name__ == "__main__":
    main()

"""Three boxes on hosts of their own: how well they share, and what failures cost.

    sudo python -m benchmarks.site --json site.json

Hosts are network namespaces (tests/hosts.py), each box is a real `edge_agent` with its own Ray, and
only devices are emulated, so that three boxes fit on one machine. Measured are

* the share in time with all of the load on one box, beside that of one box with all three devices;
* the same while one box is killed (`kill -9`) and started again, and
* while a cable is cut for 30 s, with every box under some load of its own, and
* how long it takes after each until all boxes hear all others again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.figures import write_figures
from tests.e2e.running_agent import RunningAgent
from tests.e2e.site import CAPACITY, SteadyLoad, seconds_until, start_box, states
from tests.hosts import Site
from tests.workers.onnx_models import relu, save

NAMES = ("box-a", "box-b", "box-c")
DEADLINE_MS = 400.0
BACK_S = 60.0


def main() -> None:
    """Measures, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="Where the figures go.")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="Of each part without failures."
    )
    parser.add_argument("--load", type=float, default=0.8, help="As a share of all capacity.")
    asked = parser.parse_args()
    figures: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "capacity_of_a_box_per_s": round(CAPACITY, 1),
        "deadline_ms": DEADLINE_MS,
        "load": asked.load,
    }
    with tempfile.TemporaryDirectory(prefix="site-") as folder, Site(3) as site:
        root = Path(folder)
        save(relu(), root / "models/relu/1/model.onnx")
        per_s = 3 * asked.load * CAPACITY
        figures["one_big_box"] = _one_big_box(root, site, per_s, asked.seconds)
        with ThreadPoolExecutor(3) as starting:
            agents = list(starting.map(lambda n: _start(root, site, n), range(3)))
        try:
            figures["joined_s"] = _whole(agents)
            figures["load_on_one"] = _load_on_one(agents, per_s, asked.seconds)
            figures["killed"] = _killed(root, site, agents)
            figures["cut"] = _cut(site, agents, 30.0)
        finally:
            for agent in agents:
                agent.close()
    figures["share_of_big_box"] = round(
        figures["load_on_one"]["in_time"] / figures["one_big_box"]["in_time"], 4
    )
    write_figures(figures, asked.json)


def _start(root: Path, site: Site, number: int) -> RunningAgent:
    name = NAMES[number]
    return start_box(root / name, root / "models", name, site.hosts[number], site.hosts)


def _whole(agents: Sequence[RunningAgent], among: Sequence[int] = (0, 1, 2)) -> float:
    """How long until these boxes hear all of each other."""

    def whole() -> bool:
        return all(
            states(agents[i].url).get(NAMES[j]) == "up" for i in among for j in among if i != j
        )

    return round(seconds_until(whole, BACK_S), 2)


def _ended(load: SteadyLoad) -> dict[str, Any]:
    in_time = load.finish()
    return {
        "in_time": round(in_time, 4),
        "sent": load.sent,
        "ended": dict(load.endings),
        "targets": dict(load.targets),
    }


def _one_big_box(root: Path, site: Site, per_s: float, seconds: float) -> dict[str, Any]:
    agent = start_box(root / "big", root / "models", "big", site.hosts[0], (), devices=3)
    try:
        load = SteadyLoad(agent.url, per_s, DEADLINE_MS)
        time.sleep(seconds)
        return _ended(load)
    finally:
        agent.stop()
        agent.close()


def _load_on_one(agents: Sequence[RunningAgent], per_s: float, seconds: float) -> dict[str, Any]:
    load = SteadyLoad(agents[0].url, per_s, DEADLINE_MS)
    time.sleep(seconds)
    return _ended(load)


def _killed(root: Path, site: Site, agents: list[RunningAgent]) -> dict[str, Any]:
    """Most of the load on the first box, some on the second; the third is killed."""
    loads = [SteadyLoad(agents[0].url, 1.4 * CAPACITY, DEADLINE_MS)]
    loads.append(SteadyLoad(agents[1].url, 0.4 * CAPACITY, DEADLINE_MS))
    time.sleep(5)
    began_s = time.monotonic()
    agents[2].process.kill()
    without = [load.completed_within(3) for load in loads]
    agents[2].left_over()  # waits for what the agent had started, which ends by itself
    agents[2].close()
    agents[2] = _start(root, site, 2)
    started_s = time.monotonic() - began_s
    whole_s = _whole(agents)
    return {
        "completed_in_3_s_after": without,
        "started_again_s": round(started_s, 2),
        "whole_after_start_s": whole_s,
        "loads": [_ended(load) for load in loads],
    }


def _cut(site: Site, agents: Sequence[RunningAgent], seconds: float) -> dict[str, Any]:
    """Each box has work of its own; the third one's cable is pulled."""
    parts = (1.4, 0.4, 0.4)
    loads = [
        SteadyLoad(agent.url, part * CAPACITY, DEADLINE_MS)
        for agent, part in zip(agents, parts, strict=True)
    ]
    time.sleep(5)
    site.hosts[2].cut()
    cut_s = time.monotonic()
    slowest = [1 << 30] * len(loads)
    while time.monotonic() - cut_s < seconds:
        before = [load.endings["completed"] for load in loads]
        time.sleep(1)
        slowest = [
            min(slow, load.endings["completed"] - b)
            for slow, load, b in zip(slowest, loads, before, strict=True)
        ]
    site.hosts[2].restore()
    whole_s = _whole(agents)
    return {
        "seconds": seconds,
        "fewest_completed_in_any_second": slowest,
        "whole_after_s": whole_s,
        "loads": [_ended(load) for load in loads],
    }


if __name__ == "__main__":
    main()

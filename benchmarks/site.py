"""Three boxes and a cloud on separate hosts: how well they share, and what failures cost.

    sudo python -m benchmarks.site --json site.json

Hosts are network namespaces (tests/hosts.py), each box is a real `edge_agent` with its own Ray, and
the cloud is another one behind a link of 20 ms. Only devices are emulated, so that everything fits
on one machine. The benchmark measures

* the share in time with all load on one box, without the cloud, compared with a single box that has
  all three devices; and with the cloud and more load than the boxes can carry;
* each agent killed (`kill -9`) and started again, including the one that the others joined, and
* each cable cut for 30 s, with every box under its own load: how many of each box's requests were
  in time in the worst second, and how long it takes afterwards until all boxes reach each other and
  the cloud.

Every part checks that no request is lost or ends twice.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import write_figures
from tests.e2e.site import CLOUD, NAMES, BoxesAndCloud, Pace, SteadyLoad, seconds_until, start_box
from tests.hosts import Site

PACE = Pace(base_ms=20, item_ms=5)
BACK_S = 60.0
OWN = (1.4, 0.4, 0.4)
"""The loads during failures, as shares of one box's capacity."""

FAILING = (*NAMES, CLOUD)
MARGIN_S = 5.0
"""How long loads run before a failure, in seconds."""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the figures to this file.")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="Length of each part without failures."
    )
    parser.add_argument("--cut", type=float, default=30.0, help="How long cables are cut.")
    parser.add_argument("--load", type=float, default=0.8, help="As a share of all capacity.")
    asked = parser.parse_args()
    figures: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "capacity_of_a_box_per_s": round(PACE.capacity, 1),
        "deadline_ms": PACE.deadline_ms,
        "load": asked.load,
    }
    with tempfile.TemporaryDirectory(prefix="site-") as folder, Site(4) as site:
        boxes = BoxesAndCloud(Path(folder), site, PACE)
        try:
            figures["joined_s"] = whole(boxes)
            figures.update(_without_failures(boxes, asked.load, asked.seconds))
            figures["killed"] = {FAILING[n]: _killed(boxes, n) for n in range(4)}
            figures["cut"] = {FAILING[n]: _cut(boxes, n, asked.cut) for n in range(4)}
        finally:
            boxes.close()
        figures["one_big_box"] = _one_big_box(Path(folder), site, asked.load, asked.seconds)
    shares = [figures[part]["in_time"] for part in ("load_on_one", "one_big_box")]
    figures["share_of_big_box"] = round(shares[0] / shares[1], 4)
    figures["load_average_after"] = os.getloadavg()[0]
    write_figures(figures, asked.json)


def whole(boxes: BoxesAndCloud) -> float:
    """The seconds until all boxes reach each other and the cloud."""
    return round(seconds_until(boxes.is_whole, BACK_S), 2)


def _ended(load: SteadyLoad) -> dict[str, Any]:
    return {
        "in_time": round(load.endings["completed"] / max(1, load.sent), 4),
        "sent": load.sent,
        "ended": dict(load.endings),
        "targets": dict(load.targets),
    }


def _without_failures(boxes: BoxesAndCloud, load: float, seconds: float) -> dict[str, Any]:
    with boxes.cut_off(3):
        seconds_until(lambda: not boxes.is_whole(), BACK_S)
        with boxes.loads(3 * load) as alone:
            time.sleep(seconds)
    whole(boxes)
    with boxes.loads(3 * 1.3) as too_much:
        time.sleep(seconds)
    return {"load_on_one": _ended(alone[0]), "too_much_on_one": _ended(too_much[0])}


def _one_big_box(root: Path, site: Site, load: float, seconds: float) -> dict[str, Any]:
    agent = start_box(root / "big", root / "models", "big", site.hosts[0], PACE, devices=3)
    try:
        steady = SteadyLoad(agent.url, 3 * load * PACE.capacity, PACE.deadline_ms)
        time.sleep(seconds)
        steady.finish()
        return _ended(steady)
    finally:
        agent.stop()
        agent.close()


def _killed(boxes: BoxesAndCloud, number: int) -> dict[str, Any]:
    """Kill one agent and start it again; requests to it meanwhile are refused connections."""
    with boxes.loads(*OWN) as loads:
        time.sleep(MARGIN_S)
        boxes.kill(number)
        killed_s = time.monotonic()
        boxes.start_again(number)
        ready_s = time.monotonic()
        whole_s = whole(boxes)
        back_s = time.monotonic()
    return {
        "started_again_s": round(ready_s - killed_s, 2),
        "whole_after_start_s": whole_s,
        "fewest_in_time_in_any_second": [
            load.fewest_in_a_second(killed_s, back_s) for load in loads
        ],
        "loads": [_ended(load) for load in loads],
    }


def _cut(boxes: BoxesAndCloud, number: int, seconds: float) -> dict[str, Any]:
    """Pull the cable of one host, and plug it in again."""
    with boxes.loads(*OWN) as loads:
        time.sleep(MARGIN_S)
        with boxes.cut_off(number):
            cut_s = time.monotonic()
            time.sleep(seconds)
        whole_s = whole(boxes)
        back_s = time.monotonic()
    return {
        "seconds": seconds,
        "fewest_in_time_in_any_second": [load.fewest_in_a_second(cut_s, back_s) for load in loads],
        "whole_after_s": whole_s,
        "loads": [_ended(load) for load in loads],
    }


if __name__ == "__main__":
    main()

"""A box without Ray: the real door, driver, store and feeder in a process to be killed.

    python -m benchmarks.task_box worker SOCKET LOG   a worker on the real link, whose device only
                                                      takes time; LOG gets what it ran
    python -m benchmarks.task_box box FOLDER SOCKET   the scheduler's side, at FOLDER/s.sock

The model `double` returns twice its input `x`, a vector of two values: a number chosen by the
caller, and the milliseconds for which the item keeps the device busy. An item with a negative
number fails. The model `idle` is the same, but no target has it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import structlog
import uvloop

from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.daemon.driver import Driver
from scheduler.durable.desk import TaskDesk
from scheduler.durable.records import Bounds
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.task_door import TaskDoor
from scheduler.tenants import Access
from scheduler.wire import FrameLimits, Tensors
from workers.link import offer_header
from workers.link_server import LinkServer

MODEL, IDLE_MODEL = "double", "idle"
BATCHES = (1, 2, 4, 8, 16)
_BASE_NS, _ITEM_NS = 1_000_000, 200_000
_VECTOR = {"dtype": "float64", "shape": [2]}


def card(name: str) -> dict[str, Any]:
    """A model's card, as a worker sends it."""
    signature = {
        "inputs": [{"name": "x", **_VECTOR}],
        "outputs": [{"name": "y", **_VECTOR}],
        "batched": True,
    }
    described = {"name": name, "description": "twice its input", "signature": signature}
    served = {"variants": ["only"], "max_batch": BATCHES[-1], "digest": name, "cache": None}
    return {**described, **served}


def offer() -> Offer:
    """The device's offer."""
    ladder = {size: (_BASE_NS + size * _ITEM_NS,) * 3 for size in BATCHES}
    return Offer(MODEL, "only", "sleeping", ladder)


class Host:
    """A device that only takes time, and logs each number that it ran."""

    def __init__(self, log: Path) -> None:
        """Append to the file."""
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def run(self, model: str, variant: str, items: list[Tensors]) -> list[Any]:
        """Return twice each input after the items' time."""
        busy_s = sum(float(item["x"][1]) for item in items) / 1e3
        time.sleep((_BASE_NS + len(items) * _ITEM_NS) / 1e9 + busy_s)
        os.write(self._log, b"".join(b"%d\n" % int(item["x"][0]) for item in items))
        return [self._one(item["x"]) for item in items]

    def _one(self, x: Any) -> Any:
        return {"y": 2 * x} if x[0] >= 0 else ValueError(f"{x[0]:g} is negative")


def run_worker(path: Path, log: Path) -> None:
    """Serve one box after another until killed."""
    link = LinkServer(path, Host(log))
    cards = [card(MODEL), card(IDLE_MODEL)]
    link.say("catalog", {"t": "catalog", "models": cards, "problems": []})
    link.say("offer", offer_header(offer()))
    link.say("progress", {"t": "progress", "done": 1, "total": 1, "text": "ready"})
    link.serve_forever()


async def run_box(folder: Path, worker: Path, bounds: Bounds) -> None:
    """Serve until SIGTERM, then drain."""
    driver = Driver(limits=Limits())
    rules = DoorRules("bench", Access(), FrameLimits(), 64, 3_600_000_000_000)
    door = NativeDoor(driver, rules, driver.status)
    desk = TaskDesk(driver, folder / "tasks", bounds, door.admission.is_loaded)
    door.tasks = TaskDoor(desk, door.admission, bounds, 10**18)
    driver.add_device("cpu:0", worker)
    path = folder / "s.sock"
    path.unlink(missing_ok=True)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(door, str(path))
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()
    door.stop_admitting()
    desk.stop()
    await driver.drain(5)
    await desk.close()
    door.close()
    await driver.close()


def serve(folder: Path, worker: Path, bounds: Bounds) -> None:
    """Run a box in this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.install()
    asyncio.run(run_box(folder, worker, bounds))


def main() -> None:
    """Run the worker or the box."""
    parser = argparse.ArgumentParser(description="a box without Ray, to be killed")
    parser.add_argument("what", choices=("box", "worker"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--disk-bytes", type=int, help="the largest database of the box")
    arguments = parser.parse_args()
    if arguments.what == "worker":
        run_worker(arguments.first, arguments.second)
        return
    serve(arguments.first, arguments.second, Bounds(disk_bytes=arguments.disk_bytes))


if __name__ == "__main__":
    main()

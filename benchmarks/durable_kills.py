"""Kill a box with durable tasks at random moments, and count what became of the tasks.

    python -m benchmarks.durable_kills --kills 200 --tasks 10000 --json FILE
    python -m benchmarks.durable_kills --box real --life 4 --kills 200 --tasks 10000 --json FILE

By default `benchmarks.task_box` is killed (SIGKILL): the real native door, driver, policy, store
and feeder in one process, without Ray. Its worker is a separate process that stays alive, on the
real link, with a device that only takes time; it logs what it runs. With `--box real` the victim is
an `edge_agent` (`benchmarks.killed_agent`): mostly its scheduler actor, which Ray restarts,
sometimes its worker, and sometimes all its processes, after which the agent is started again.

Each task has a number that determines its result. A caller submits tasks in order with many in
flight, the same number in each life, and resubmits each under its own id until it is acknowledged.
A fifth of the lives end as soon as the door is open, while tasks are read from disk.

SIGKILL loses the data in the process, not what the kernel holds. What a power cut leaves of the log
is tested in tests/durable/test_database.py, which tears it at any byte.

The figures: `acknowledged` tasks; `lost`, acknowledged but unknown or without a result afterwards;
`wrong` results; `ended_twice`, tasks whose outcome changed after it was seen; `resubmitted`, sent
again after an error (after a lost connection the client itself resubmits, which does not count).
Without `--box real` also `run_again`, tasks that ran more than once, and `runs`, the total number
of runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.figures import write_figures
from benchmarks.killed_agent import KilledAgent
from benchmarks.task_box import MODEL, run_worker, serve
from scheduler import AsyncClient, LaxityError, RequestEnded
from scheduler.durable.records import Bounds

IN_FLIGHT = 64
DEADLINE_S = 24 * 3600.0
FETCHED_AT_ONCE = 200
READY_S = 300
EARLY, EARLY_S = 0.2, 0.2
"""This share of lives ends within this time of the door's opening, in seconds."""


class Victim(Protocol):
    """The box that keeps tasks and is killed.

    Attributes:
        url: The URL of its native door.
        model: The model of the tasks.
    """

    url: str
    model: str

    def inputs(self, number: int) -> dict[str, Any]:
        """The inputs of a task."""

    def is_right(self, number: int, outputs: Any) -> bool:
        """Whether a task's result is right."""

    def start(self) -> None:
        """Start what was killed and does not restart by itself."""

    def kill(self) -> None:
        """Kill it, or part of it, with SIGKILL."""

    def drain(self) -> None:
        """End it in the orderly way."""

    def close(self) -> None:
        """Kill what is left."""

    def figures(self) -> dict[str, Any]:
        """Its own figures."""


@dataclass(slots=True)
class Tally:
    """The caller's observations.

    Attributes:
        acknowledged: The numbers of the acknowledged tasks.
        seen: The outcomes seen while the box was being killed, by task number.
        counts: Counts of other observations.
    """

    acknowledged: set[int] = field(default_factory=set)
    seen: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def with_its_parent(target: Callable[..., None], *arguments: Any) -> None:
    """Run `target`, and end this process when its parent ends, however that ends."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    target(*arguments)


class KilledBox:
    """The scheduler's side of a box in one process, and a worker in another; a `Victim`."""

    model = MODEL

    def __init__(self, folder: Path, busy_ms: float) -> None:
        """Start the worker; each task keeps its device busy for `busy_ms`."""
        self.folder = folder
        self.url = f"unix://{folder}/s.sock"
        self.log = folder / "runs.log"
        self._busy_ms = busy_ms
        # Boxes are forked from a process with everything imported, so that they start at once.
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["benchmarks.task_box"])
        self._worker = self._start(run_worker, folder / "w.sock", self.log)
        self._box: BaseProcess | None = None

    def inputs(self, number: int) -> dict[str, Any]:
        """The inputs of a task."""
        return {"x": np.array([number, self._busy_ms])}

    def is_right(self, number: int, outputs: Any) -> bool:
        """Whether a task's result is right."""
        return bool(outputs["y"][0] == 2 * number)

    def start(self) -> None:
        """Start the box."""
        self._box = self._start(serve, self.folder, self.folder / "w.sock", Bounds())

    def _start(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = self._forks.Process(target=with_its_parent, args=(target, *arguments))
        process.start()
        return process

    def kill(self) -> None:
        """Kill the box with SIGKILL."""
        assert self._box is not None
        self._box.kill()
        self._box.join()

    def drain(self) -> None:
        """End the box in the orderly way."""
        assert self._box is not None
        self._box.terminate()
        self._box.join(60)
        if self._box.exitcode != 0:
            raise RuntimeError(f"the box ended with {self._box.exitcode}")

    def close(self) -> None:
        """Kill what is left."""
        for process in (self._worker, self._box):
            if process is not None:
                process.kill()
                process.join()

    def figures(self) -> dict[str, Any]:
        """How often tasks were run."""
        runs = Counter(map(int, self.log.read_text().split()))
        return {
            "runs": sum(runs.values()),
            "run_again": sum(count > 1 for count in runs.values()),
            "most_runs": max(runs.values(), default=0),
        }


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncClient]:
    """A client, once the box accepts connections."""
    client = AsyncClient(url)
    try:
        await client.connect(READY_S)
        yield client
    finally:
        await client.close()


async def submit_all(
    box: Victim, tasks: int, allowed: asyncio.Semaphore, pace_s: float, tally: Tally
) -> None:
    """Submit each task until it is acknowledged, and only as many tasks as are allowed yet."""
    pending = asyncio.Semaphore(IN_FLIGHT)

    async def submit(client: AsyncClient, number: int) -> None:
        try:
            for attempt in range(1_000_000):
                options: Any = {"deadline_s": DEADLINE_S, "durable": True, "id": f"t{number}"}
                try:
                    await client.submit(box.model, box.inputs(number), **options)
                except RequestEnded:
                    tally.counts["resubmitted"] += not attempt
                    await asyncio.sleep(0.05)
                else:
                    tally.acknowledged.add(number)
                    return
        finally:
            pending.release()

    async with connected(box.url) as client:
        waiting = []
        for number in range(tasks):
            await allowed.acquire()
            await pending.acquire()
            waiting.append(asyncio.create_task(submit(client, number)))
            await asyncio.sleep(pace_s)
        await asyncio.gather(*waiting)


async def watch(url: str, tasks: int, tally: Tally) -> None:
    """Look at random tasks while the box is being killed, until cancelled."""
    chance = random.Random(1)
    async with connected(url) as client:
        while True:
            await asyncio.sleep(0.01)
            number = chance.randrange(tasks)
            with contextlib.suppress(LaxityError):
                status = await client.task(f"t{number}").status()
                if status.outcome is not None:
                    before = tally.seen.setdefault(number, status.outcome)
                    tally.counts["ended_twice"] += before != status.outcome


async def wait_for_models(url: str) -> None:
    """Wait until the box would accept a task.

    Raises:
        RuntimeError: It does not get ready.
    """
    end_s = time.monotonic() + READY_S
    async with connected(url) as client:
        while True:
            # A process that is being killed may still be the one that answers.
            with contextlib.suppress(LaxityError, ConnectionError):
                if (await client.models())["models"]:
                    return
            if time.monotonic() > end_s:
                raise RuntimeError(f"the box has no models after {READY_S} s; see what it wrote")
            await asyncio.sleep(0.01)


async def kill_again_and_again(
    box: Victim,
    kills: int,
    longest_s: float,
    allow: Callable[[int], None],
    submitting: asyncio.Task[None],
) -> int:
    """Kill and start the box repeatedly; return the number of kills while tasks were submitted."""
    chance = random.Random(2)
    during = 0
    for kill in range(kills):
        await asyncio.to_thread(box.start)
        if chance.random() < EARLY:
            async with connected(box.url):
                allow(kill)
                await asyncio.sleep(chance.uniform(0, EARLY_S))
        else:
            await wait_for_models(box.url)
            allow(kill)
            await asyncio.sleep(chance.uniform(0, longest_s))
        during += not submitting.done()
        await asyncio.to_thread(box.kill)
        if (kill + 1) % max(1, kills // 20) == 0:
            print(f"{kill + 1} of {kills} kills", file=sys.stderr, flush=True)
    await asyncio.to_thread(box.start)
    await wait_for_models(box.url)
    return during


async def look_afterwards(box: Victim, tally: Tally) -> None:
    """Fetch the result of every acknowledged task."""
    pending = asyncio.Semaphore(FETCHED_AT_ONCE)

    async def fetch(client: AsyncClient, number: int) -> None:
        async with pending:
            try:
                result = await client.task(f"t{number}").result(300)
            except (LaxityError, TimeoutError) as error:
                tally.counts["lost"] += 1
                print(f"task {number}: {error!r}", file=sys.stderr)
                return
        tally.counts["wrong"] += not box.is_right(number, result)
        before = tally.seen.setdefault(number, result.outcome.value)
        tally.counts["ended_twice"] += before != result.outcome.value

    async with connected(box.url) as client:
        await asyncio.gather(*(fetch(client, number) for number in sorted(tally.acknowledged)))
        listed = await client.tasks(0)
        tally.counts["kept"] = sum(listed["counts"].values())
        tally.counts["completed"] = listed["counts"].get("completed", 0)


async def measure(box: Victim, kills: int, tasks: int, longest_s: float) -> dict[str, Any]:
    """Run the whole experiment and return the figures."""
    tally = Tally()
    allowed = asyncio.Semaphore(0)

    def allow(kill: int) -> None:
        """Allow the next part of the tasks; an average life has time for all of them."""
        for _ in range((kill + 1) * tasks // kills - kill * tasks // kills):
            allowed.release()

    started_s = time.monotonic()
    try:
        pace_s = kills * longest_s / 2 / tasks
        submitting = asyncio.create_task(submit_all(box, tasks, allowed, pace_s, tally))
        watching = asyncio.create_task(watch(box.url, tasks, tally))
        during = await kill_again_and_again(box, kills, longest_s, allow, submitting)
        await submitting
        watching.cancel()
        await look_afterwards(box, tally)
        box.drain()
    finally:
        box.close()
    return {
        "kills": kills,
        "kills_while_submitting": during,
        "tasks": tasks,
        "acknowledged": len(tally.acknowledged),
        "kept": tally.counts["kept"],
        "completed": tally.counts["completed"],
        "lost": tally.counts["lost"],
        "wrong": tally.counts["wrong"],
        "ended_twice": tally.counts["ended_twice"],
        "resubmitted": tally.counts["resubmitted"],
        **box.figures(),
        "seconds": round(time.monotonic() - started_s, 1),
    }


def main() -> int:
    """Measure, write the figures, and fail if a promise was broken."""
    parser = argparse.ArgumentParser(description="kill -9 of the process that keeps the tasks")
    parser.add_argument("--box", choices=("bare", "real"), default="bare", help="the box to kill")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument(
        "--busy", type=float, default=10.0, help="device time of a task, in ms (bare)"
    )
    parser.add_argument("--life", type=float, default=1.0, help="the longest life, in seconds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-kills-") as name:
        real = arguments.box == "real"
        box = KilledAgent(Path(name)) if real else KilledBox(Path(name), arguments.busy)
        found = asyncio.run(measure(box, arguments.kills, arguments.tasks, arguments.life))
    write_figures(found, arguments.json)
    all_there = found["acknowledged"] == found["completed"] == found["kept"] == found["tasks"]
    broken = found["lost"] + found["wrong"] + found["ended_twice"]
    return 0 if all_there and not broken else 1


if __name__ == "__main__":
    sys.exit(main())

"""Boxes of one site for tests and measurements: agents on hosts of their own, and steady loads."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.spawned_agent import prefer_all
from scheduler import Client, RequestEnded, Result
from tests.e2e.running_agent import RunningAgent
from tests.hosts import Host, Site
from tests.workers.onnx_models import relu, save

NAMES = ("box-a", "box-b", "box-c")
CLOUD = "far"
CLOUD_RTT_MS = 20.0
START_S = 180
"""Four agents that start at once on two cores take their time."""

PORT = 8702
GRPC_PORT = 8701
BATCH = 4
TOKEN = "lx_site-0123456789abcdef"
X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}


class Pace(NamedTuple):
    """How fast the emulated devices are: a batch of n takes `base_ms + item_ms * n`."""

    base_ms: float
    item_ms: float

    @property
    def batch_ms(self) -> float:
        """How long the largest batch takes."""
        return self.base_ms + self.item_ms * BATCH

    @property
    def capacity(self) -> float:
        """Requests per second of one device."""
        return BATCH / self.batch_ms * 1e3

    @property
    def deadline_ms(self) -> float:
        """What requests are given: enough to be served elsewhere."""
        return 10 * self.batch_ms

    def devices(self, count: int) -> list[dict[str, Any]]:
        """So many of them, as the configuration has it."""
        options = {"base_ms": self.base_ms, "per_item_ms": self.item_ms}
        device = {"runtimes": ["emulated"], "options": options}
        return [{"id": f"cpu:{number}", **device} for number in range(count)]


def start_box(
    folder: Path,
    models: Path,
    name: str,
    host: Host,
    pace: Pace,
    devices: int = 1,
    join: Sequence[Host] = (),
    cloud: Host | None = None,
) -> RunningAgent:
    """A box with emulated devices on a host, told to join those on others."""
    folder.mkdir(exist_ok=True)
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    far = {"name": CLOUD, "cost_per_request": 0.001, "expected_ms": pace.batch_ms}
    return RunningAgent(
        folder,
        models,
        host,
        START_S,
        site="test",
        listen={"native": [f"unix://{folder}/s.sock", f"tcp://{host.address}:{PORT}"]},
        token_file=str(token),
        policy={"name": "spill"},
        devices=pace.devices(devices),
        profile={"max_batch": BATCH},
        journal={"enabled": False},
        neighbours={"name": name, "join": [f"{other.address}:{PORT}" for other in join]},
        cloud=[{**far, "url": f"grpc://{cloud.address}:{GRPC_PORT}"}] if cloud is not None else [],
    )


def start_cloud(folder: Path, models: Path, host: Host, pace: Pace) -> RunningAgent:
    """A box that others use as a server of the Open Inference Protocol, with two devices."""
    folder.mkdir(exist_ok=True)
    return RunningAgent(
        folder,
        models,
        host,
        START_S,
        listen={"grpc": f"127.0.0.1:{GRPC_PORT}"},
        devices=pace.devices(2),
        profile={"max_batch": BATCH},
        journal={"enabled": False},
    )


@contextmanager
def far_away(host: Host) -> Iterator[int]:
    """A long way to the door of the cloud, on the cloud's own host; its process."""
    ends = ["--listen", f"{host.address}:{GRPC_PORT}", "--to", f"127.0.0.1:{GRPC_PORT}"]
    link = ["replay", "link", *ends, "--rtt-ms", str(CLOUD_RTT_MS)]
    words = host.command(sys.executable, "-m", "scheduler.cli", *link)
    nowhere = subprocess.DEVNULL
    # Niceness is a session's where the kernel groups by it, and the tests' own is not meant.
    with subprocess.Popen(
        words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def seconds_until(holds: Callable[[], bool], patience_s: float) -> float:
    """How long it takes until something is so.

    Raises:
        TimeoutError: It is not so in time.
    """
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError(f"it did not come about in {patience_s} s")
        time.sleep(0.05)
    return time.monotonic() - began_s


class SteadyLoad:
    """Requests by chance at one box from a thread, and how each of them ended."""

    def __init__(self, url: str, per_s: float, deadline_ms: float) -> None:
        self._client = Client(url, token=TOKEN)
        self._per_s, self._deadline_ms = per_s, deadline_ms
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = 0
        self.endings: Counter[str] = Counter()
        self.targets: Counter[str] = Counter()
        self.twice = 0
        self._in_time: dict[int, bool] = {}
        self._done_s: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random("relu")
        due_s = time.monotonic()
        while not self._stop.is_set():
            due_s += chance.expovariate(self._per_s)
            self._stop.wait(max(0.0, due_s - time.monotonic()))
            number = self.sent
            self.sent += 1
            future = self._client.submit("relu", X, deadline_ms=self._deadline_ms)
            future.add_done_callback(partial(self._note, number))

    def _note(self, number: int, future: Future[Result]) -> None:
        with self._lock:
            self.twice += number in self._in_time
            try:
                self.targets[future.result().target] += 1
                self._done_s.append(time.monotonic())
                self._in_time[number] = True
                self.endings["completed"] += 1  # last: `finish` waits for it
            except (RequestEnded, CancelledError) as error:
                self._in_time[number] = False
                self.endings[type(error).__name__] += 1

    def fewest_in_a_second(self, from_s: float, to_s: float) -> int:
        """How many were in time in the worst of the whole seconds between two moments."""
        seconds = Counter(int(done_s - from_s) for done_s in self._done_s if done_s >= from_s)
        return min(seconds[second] for second in range(int(to_s - from_s)))

    def missed_in_a_row(self) -> int:
        """How many requests in a row were not in time, at most."""
        worst = row = 0
        for number in sorted(self._in_time):
            row = 0 if self._in_time[number] else row + 1
            worst = max(worst, row)
        return worst

    def stop(self) -> None:
        """Asks for nothing more."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> float:
        """Stops, and waits for every end; the share that was in time.

        Raises:
            AssertionError: A request did not end just once.
        """
        self.stop()
        seconds_until(lambda: sum(self.endings.values()) == self.sent, 30)
        self._client.close()
        assert self.twice == 0
        return self.endings["completed"] / max(1, self.sent)


class BoxesAndCloud:
    """Three boxes and a cloud that all of them use, each on a host of its own.

    All boxes join at the first one.

    Args:
        root: For models and what agents write.
        site: With four hosts; the last is the cloud's.
        pace: Of all devices.

    Attributes:
        site: The hosts.
        pace: Of all devices.
        agents: Those of the boxes, then that of the cloud.
    """

    def __init__(self, root: Path, site: Site, pace: Pace) -> None:
        """Starts all of them at once."""
        self.site, self.pace = site, pace
        self._root = root
        self._models = root / "models"
        save(relu(), self._models / "relu/1/model.onnx")
        self._held = ExitStack()
        self._link = self._held.enter_context(far_away(site.hosts[3]))
        with ThreadPoolExecutor(4) as starting:
            futures = [starting.submit(self._started, number) for number in range(4)]
        self.agents = [future.result() for future in futures if future.exception() is None]
        try:
            for future in futures:
                future.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends them."""
        for agent in self.agents:
            agent.close()
        self._held.close()

    def _started(self, number: int) -> RunningAgent:
        hosts, pace = self.site.hosts, self.pace
        if number == 3:
            return start_cloud(self._root / CLOUD, self._models, hosts[3], pace)
        name = NAMES[number]
        folder, host = self._root / name, hosts[number]
        return start_box(folder, self._models, name, host, pace, join=hosts[:1], cloud=hosts[3])

    def prefer(self, niceness: int) -> None:
        """Sets the niceness of all that runs in them now, beside others on the machine.

        Raises:
            PermissionError: It is below 0, and this user may not.
        """
        for pid in (self._link, *(agent.process.pid for agent in self.agents)):
            prefer_all(pid, niceness)

    def kill(self, number: int) -> None:
        """`kill -9` of an agent, whose other processes then end by themselves."""
        self.agents[number].process.kill()

    def start_again(self, number: int) -> None:
        """Starts an agent that was killed; returns when it is ready."""
        assert self.agents[number].left_over() == []
        self.agents[number].close()
        self.agents[number] = self._started(number)

    @contextmanager
    def cut_off(self, number: int) -> Iterator[None]:
        """Pulls the cable of a host for a while."""
        self.site.hosts[number].cut()
        try:
            yield
        finally:
            self.site.hosts[number].restore()

    def status(self, number: int) -> dict[str, Any]:
        """What a box says."""
        with Client(self.agents[number].url, token=TOKEN, connect_timeout_s=5) as client:
            return client.status()

    def laxity(self, number: int, *words: str) -> str:
        """What a command says of a box, to its owner on the same machine."""
        url = self.agents[number].url
        command = [sys.executable, "-m", "scheduler.cli", *words, "--url", url]
        environment = {**os.environ, "LAXITY_TOKEN": TOKEN}
        done = subprocess.run(command, text=True, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self, number: int) -> dict[str, str]:
        """How a box sees the other boxes."""
        members = self.status(number)["neighbours"]["members"]
        return {member["name"]: member["state"] for member in members}

    def is_whole(self) -> bool:
        """Whether the boxes hear all of each other, and have the cloud."""
        for number in range(len(NAMES)):
            status = self.status(number)
            members = {each["name"]: each["state"] for each in status["neighbours"]["members"]}
            (far,) = (target for target in status["targets"] if target["id"] == CLOUD)
            heard = all(members.get(name) == "up" for name in NAMES if name != NAMES[number])
            if not heard or not far["up"] or far["breaker"]["state"] == "open":
                return False
        return True

    @contextmanager
    def loads(self, *parts: float) -> Iterator[list[SteadyLoad]]:
        """Loads at the boxes, as shares of what one of them can do; 0 is none.

        At the end each request has one outcome, for its caller and at the boxes that are there.
        """
        pace = self.pace
        loads = [
            SteadyLoad(agent.url, part * pace.capacity, pace.deadline_ms)
            for agent, part in zip(self.agents, parts, strict=False)
            if part
        ]
        try:
            yield loads
        finally:
            for load in loads:
                load.stop()
        for load in loads:
            load.finish()
        for number, agent in enumerate(self.agents[:3]):
            if agent.process.poll() is None:
                seconds_until(lambda: self.status(number)["held"] == 0, 5)  # noqa: B023

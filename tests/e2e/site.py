"""Boxes of one site for tests and measurements: agents on hosts of their own, and a steady load."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scheduler import Client, RequestEnded, Result
from tests.e2e.running_agent import RunningAgent
from tests.hosts import Host

PORT = 8702
BASE_MS, ITEM_MS, BATCH = 20, 5, 4
CAPACITY = BATCH / (BASE_MS + ITEM_MS * BATCH) * 1e3
"""Requests per second of one device."""

TOKEN = "lx_site-0123456789abcdef"
X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}


def start_box(
    folder: Path, models: Path, name: str, host: Host, join: Sequence[Host], devices: int = 1
) -> RunningAgent:
    """A box with emulated devices on a host, told to join those on others."""
    folder.mkdir(exist_ok=True)
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    device = {"runtimes": ["emulated"], "options": {"base_ms": BASE_MS, "per_item_ms": ITEM_MS}}
    return RunningAgent(
        folder,
        models,
        host,
        site="test",
        listen={"native": [f"unix://{folder}/s.sock", f"tcp://{host.address}:{PORT}"]},
        token_file=str(token),
        policy={"name": "spill"},
        devices=[{"id": f"cpu:{n}", **device} for n in range(devices)],
        profile={"max_batch": BATCH, "seconds": 1.0},
        journal={"enabled": False},
        neighbours={"name": name, "join": [f"{other.address}:{PORT}" for other in join]},
    )


def states(url: str) -> dict[str, str]:
    """How a box sees the others."""
    with Client(url, token=TOKEN, connect_timeout_s=5) as client:
        return {m["name"]: m["state"] for m in client.status()["neighbours"]["members"]}


def seconds_until(holds: Any, patience_s: float) -> float:
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

    def __init__(self, url: str, per_s: float, deadline_ms: float, model: str = "relu") -> None:
        self._client = Client(url, token=TOKEN)
        self._model, self._per_s, self._deadline_ms = model, per_s, deadline_ms
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = 0
        self.endings: Counter[str] = Counter()
        self.targets: Counter[str] = Counter()
        self.twice = 0
        self._ended: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(self._model)
        due_s = time.monotonic()
        while not self._stop.is_set():
            due_s += chance.expovariate(self._per_s)
            self._stop.wait(max(0.0, due_s - time.monotonic()))
            number = self.sent
            self.sent += 1
            future = self._client.submit(self._model, X, deadline_ms=self._deadline_ms)
            future.add_done_callback(partial(self._note, number))

    def _note(self, number: int, future: Future[Result]) -> None:
        with self._lock:
            self.twice += number in self._ended
            self._ended.add(number)
            try:
                self.targets[future.result().target] += 1
                self.endings["completed"] += 1
            except (RequestEnded, CancelledError) as error:
                self.endings[type(error).__name__] += 1

    def completed_within(self, seconds: float) -> int:
        """How many are completed in the next seconds."""
        before = self.endings["completed"]
        time.sleep(seconds)
        return self.endings["completed"] - before

    def finish(self) -> float:
        """Stops, and waits for every end; the share that was in time.

        Raises:
            AssertionError: A request did not end just once.
        """
        self._stop.set()
        self._thread.join()
        seconds_until(lambda: sum(self.endings.values()) == self.sent, 30)
        self._client.close()
        assert self.twice == 0
        return self.endings["completed"] / max(1, self.sent)

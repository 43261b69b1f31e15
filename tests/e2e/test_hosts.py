"""Agents on hosts of their own, served over a link that fails."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler.tenants import new_token
from tests.e2e.running_agent import RunningAgent
from tests.hosts import Host, Site
from tests.workers.onnx_models import relu, save

PATIENCE_S = 60
PORT = 8700
CUT_S = 7
"""Longer than the client waits for a connection over which nothing gets through."""

_CALLER = """
import json, sys, threading, time
import numpy as np
from scheduler import Client

url, token = sys.argv[1:]
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
with Client(url, token=token, connect_timeout_s=20) as client:
    futures = []
    while not stop.is_set():
        future = client.submit("relu", {"x": np.float32([-1, 0, 2])}, deadline_ms=1000)
        number = len(futures)

        def say(done, number=number):
            error = done.exception()
            how = "completed" if error is None else type(error).__name__
            print(json.dumps([number, how]), flush=True)

        futures.append(future)
        future.add_done_callback(say)
        time.sleep(0.05)
    for future in futures:
        future.exception()
    print(json.dumps({"sent": len(futures), "status": client.status()}), flush=True)
"""

_LISTENERS = """
import ipaddress, json, psutil

doors = {tuple(found.laddr) for found in psutil.net_connections("tcp") if found.status == "LISTEN"}
addresses = {(ipaddress.ip_address(host), port) for host, port in doors}
beyond = [(str(host), port) for host, port in addresses
          if not (getattr(host, "ipv4_mapped", None) or host).is_loopback]
print(json.dumps([len(doors), beyond]))
"""

_CALLERS = """
import psutil

open_ = (c for c in psutil.net_connections("tcp") if c.status == "ESTABLISHED")
print(sum(c.laddr.port == 8700 for c in open_))
"""


class Caller:
    """A client on a host, that asks twenty times a second."""

    def __init__(self, host: Host, url: str, token: str) -> None:
        self._process = subprocess.Popen(
            host.command(sys.executable, "-c", _CALLER, url, token),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ended: list[tuple[int, str]] = []
        self.summary: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if isinstance(said, dict):
                self.summary = said
            else:
                self.ended.append((said[0], said[1]))

    def wait(self, how: Callable[[str], bool], count: int) -> None:
        """Until so many more requests ended so."""
        begun, deadline = len(self.ended), time.monotonic() + PATIENCE_S
        while sum(how(each) for _, each in self.ended[begun:]) < count:
            assert self._process.poll() is None, "the caller has ended"
            assert time.monotonic() < deadline, self.ended[-10:]
            time.sleep(0.02)

    def stop(self) -> dict[str, Any]:
        """What it says at its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0
        self._reader.join()
        return self.summary

    def close(self) -> None:
        self._process.kill()
        with self._process:
            self._reader.join()


@pytest.fixture(scope="module")
def site(new_site: Callable[[int], Site]) -> Iterator[Site]:
    with new_site(3) as made:
        yield made


@pytest.fixture(scope="module")
def token() -> str:
    return new_token()


@pytest.fixture(scope="module")
def agents(
    site: Site, token: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RunningAgent]]:
    """An agent on each of the first two hosts, started at the same time."""
    models = tmp_path_factory.mktemp("models")
    save(relu(), models / "relu/1/model.onnx")
    folders = [tmp_path_factory.mktemp("agent") for _ in range(2)]

    def start(host: Host, folder: Path) -> RunningAgent:
        token_file = folder / "token"
        token_file.touch(0o600)
        token_file.write_text(token)
        listen = {"native": f"tcp://{host.address}:{PORT}"}
        options: dict[str, Any] = {
            "listen": listen,
            "token_file": str(token_file),
            "profile": {"max_batch": 1},
        }
        return RunningAgent(folder, models, host, **options)

    with ThreadPoolExecutor() as pool:
        starting = [pool.submit(start, *each) for each in zip(site.hosts, folders, strict=False)]
    made = [each.result() for each in starting if each.exception() is None]
    try:
        yield [each.result() for each in starting]
        assert [agent.stop() for agent in made] == [0, 0]
        assert [agent.left_over() for agent in made] == [[], []]
    finally:
        for agent in made:
            agent.close()


def completed(how: str) -> bool:
    return how == "completed"


def callers(box: Host, count: int) -> None:
    """Waits until a box has so many connections."""
    deadline = time.monotonic() + PATIENCE_S
    while int(box.run(sys.executable, "-c", _CALLERS).stdout) != count:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def serves(box: Host, client: Host, token: str) -> None:
    caller = Caller(client, f"tcp://{box.address}:{PORT}", token)
    try:
        caller.wait(completed, 10)
        caller.stop()
    finally:
        caller.close()


def test_a_client_on_another_host_is_served_again_after_a_cut(site, agents, token):
    box, client = site.hosts[0], site.hosts[2]
    caller = Caller(client, f"tcp://{box.address}:{PORT}", token)
    try:
        caller.wait(completed, 20)
        box.cut()
        cut = time.monotonic()
        caller.wait(lambda how: not completed(how), 20)
        serves(box, box, token)  # who is on the box itself is served meanwhile
        time.sleep(max(0, cut + CUT_S - time.monotonic()))
        box.restore()
        caller.wait(completed, 20)
        callers(box, 1)  # the box has dropped the connection that the client gave up
        summary = caller.stop()
    finally:
        caller.close()
    # Each request has one outcome, and the box holds none any more.
    assert Counter(number for number, _ in caller.ended) == dict.fromkeys(range(summary["sent"]), 1)
    assert summary["status"]["queues"] == []


def test_the_other_box_serves_as_well(site, agents, token):
    serves(site.hosts[1], site.hosts[2], token)


def test_beyond_its_host_an_agent_shows_its_door_alone(site, agents):
    for host in site.hosts[:2]:
        doors, beyond = json.loads(host.run(sys.executable, "-c", _LISTENERS).stdout)
        assert doors > 5  # Ray's own
        assert beyond == [[host.address, PORT]]

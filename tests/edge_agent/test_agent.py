"""An agent without the rest of its box."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import ray

from edge_agent import agent
from edge_agent.accelerators import Found
from edge_agent.errors import AgentError
from edge_agent.hardware import probe
from scheduler.address import Address
from scheduler.config.box import Config
from scheduler.config.listen import ListenConfig
from workers.crash_guard import ATTEMPTS, MAX_DEATHS, CrashGuard

TRYING = """
import sys
from pathlib import Path
from workers.crash_guard import CrashGuard
with CrashGuard(Path(sys.argv[1])).watch("model"):
    print(flush=True)
    sys.stdin.read()
"""


def trying(attempts: Path) -> subprocess.Popen[bytes]:
    """A process within an attempt."""
    command = [sys.executable, "-c", TRYING, str(attempts)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "models").mkdir()
    return Config(
        models=tmp_path / "models",
        state_dir=tmp_path / "state",
        listen=ListenConfig(native=(Address("unix", str(tmp_path / "s.sock")),)),
    )


def test_a_start_that_fails_is_no_death_of_what_its_workers_were_trying(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    attempts = config.state_dir / ATTEMPTS
    workers: list[subprocess.Popen[bytes]] = []

    class Cluster:
        def __init__(self, *_: Any) -> None:
            pass

        def watch(self, *_: Any) -> None:
            pass

        def stop(self) -> None:
            with workers.pop() as worker:
                worker.kill()

    def start(*_: Any) -> None:
        workers.append(trying(attempts))
        raise AgentError("a door did not open")

    monkeypatch.setattr(agent, "Cluster", Cluster)
    monkeypatch.setattr(agent, "mark_life", lambda _: None)
    monkeypatch.setattr(agent.Agent, "_start", start)
    hardware = probe(openvino=Found, nvidia=Found, cuda=tuple)
    for _ in range(MAX_DEATHS):
        with pytest.raises(AgentError, match="a door did not open"):
            agent.Agent(config, None, {}, hardware)
    assert CrashGuard(attempts).verdict("model") is None


def without_ray(config: Config) -> agent.Agent:
    """An agent that has started nothing."""
    made = agent.Agent.__new__(agent.Agent)
    made.config, made._stopping, made._deciding = config, threading.Event(), threading.Lock()
    made._run_dir, made._born_s = config.state_dir, 0.0
    return made


def test_a_worker_that_ends_because_ray_has_died_is_no_death_of_what_it_was_trying(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    ended = without_ray(config)
    attempts = config.state_dir / ATTEMPTS
    monkeypatch.setattr(agent, "start_over", lambda *_: None)
    for _ in range(MAX_DEATHS):
        with trying(attempts) as worker:
            ended._start_over("Ray's gcs_server has died")
            worker.kill()
    assert CrashGuard(attempts).verdict("model") is None


def test_a_signal_while_it_starts_over_is_left_to_the_next_life(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended = without_ray(config)

    def execute(*_: Any) -> None:
        begun.set()
        go_on.wait(10)

    monkeypatch.setattr(agent, "start_over", execute)
    over = threading.Thread(target=ended._start_over, args=("Ray's raylet has died",))
    over.start()
    begun.wait(10)
    drain = threading.Thread(target=ended._stop_for_good)
    drain.start()
    drain.join(0.2)
    assert drain.is_alive()
    assert not ended._stopping.is_set()
    go_on.set()
    over.join(10)
    drain.join(10)
    monkeypatch.setattr(agent, "start_over", lambda *_: pytest.fail("it has begun to stop"))
    ended._start_over("Ray's raylet has died")


class Actor:
    """An actor that Ray never places."""

    @classmethod
    def options(cls, **_: Any) -> type[Actor]:
        return cls

    def __init__(self) -> None:
        self.addresses = self

    @classmethod
    def remote(cls, *_: Any) -> Actor:
        return cls()


@pytest.mark.parametrize("fault", [None, OSError("no file descriptor is left")])
def test_a_start_that_goes_no_further_is_ended_with_its_cluster(
    monkeypatch: pytest.MonkeyPatch, config: Config, fault: Exception | None
) -> None:
    ended: list[bool] = []

    class Cluster:
        def __init__(self, *_: Any) -> None:
            pass

        def watch(self, *_: Any) -> None:
            if fault is not None:
                raise fault

        def stop(self) -> None:
            ended.append(True)

    monkeypatch.setattr(agent, "Cluster", Cluster)
    monkeypatch.setattr(agent, "mark_life", lambda _: None)
    monkeypatch.setattr(agent, "DeviceWorker", Actor)
    monkeypatch.setattr(agent, "SchedulerActor", Actor)
    monkeypatch.setattr(ray, "wait", lambda asked, timeout: ([], asked))
    hardware = probe(openvino=Found, nvidia=Found, cuda=tuple)
    with pytest.raises(SystemExit if fault is None else OSError):
        agent.Agent(config, None, {}, hardware, lambda: True)
    assert ended == [True]

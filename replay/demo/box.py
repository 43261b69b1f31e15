"""The demo's own box: an agent in a temporary folder, and all of its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
import yaml

from scheduler.files import replace_file
from scheduler.launching import launch_folder

STOP_S = 15.0
"""How long the agent may take to stop before its processes are killed."""

GONE_S = 5.0
"""How long its processes may take to be gone after the agent has ended; then they are killed."""

MAX_DEVICE_CORES = 2
"""The demo uses no more of a big machine, so that its generator can overload the box."""

_LOG_LINES = 15


class DemoError(Exception):
    """The demo can't go on; the message says why."""


class Box:
    """A configuration and the agent that serves it.

    Args:
        policy: The first policy.
        keep: Whether to keep the folder.
    """

    def __init__(self, policy: str, keep: bool = False) -> None:
        """Writes the configuration; `start` starts the agent."""
        self.folder = Path(tempfile.mkdtemp(prefix="laxity-demo-"))
        self.socket = self.folder / "laxity.sock"
        self.url = f"unix://{self.socket}"
        self.device_cores = device_cores(sorted(os.sched_getaffinity(0)))
        self.killed_at_stop = 0
        self._keep = keep
        self._agent: subprocess.Popen[bytes] | None = None
        self.configure(policy)

    def __enter__(self) -> Box:
        """The box, not yet started."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the agent and removes the folder."""
        self.stop()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def configure(self, policy: str) -> None:
        """Writes the configuration with another policy; a running agent takes it up."""
        devices: Any = "auto"
        if self.device_cores:
            devices = [{"id": "cpu:0", "cores": list(self.device_cores)}]
        config = {
            "site": "demo",
            "listen": {"native": self.url},
            "models": str(files("configs") / "models"),
            "devices": devices,
            "policy": {"name": policy},
            "profile": {"max_batch": 8, "seconds": 1.0},
            "drain_s": 2.0,
            "state_dir": str(self.folder / "state"),
            "log": {"format": "console"},
        }
        replace_file(self.folder / "edge.yaml", yaml.safe_dump(config, sort_keys=False))

    def start(self) -> None:
        """Starts the agent in its own session, so that Ctrl-C reaches only the demo."""
        with (self.folder / "agent.log").open("wb") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "edge_agent", "--config", str(self.folder / "edge.yaml")],
                cwd=launch_folder(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Checks that the agent is alive.

        Raises:
            DemoError: It is not; the message has the last lines of its log.
        """
        if self._agent is not None and self._agent.poll() is not None:
            raise DemoError(f"the agent ended with status {self._agent.returncode}:\n{self.log()}")

    def log(self) -> str:
        """The last lines of the agent's log."""
        try:
            text = (self.folder / "agent.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-_LOG_LINES:])

    def stop(self) -> None:
        """Stops the agent and everything that it started; no signal interrupts this."""
        agent = self._agent
        if agent is None:
            return
        with _undisturbed():
            family = _family(agent.pid)
            agent.terminate()
            try:
                agent.wait(STOP_S)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
            self.killed_at_stop = _kill(family)
        self._agent = None


def device_cores(usable: list[int]) -> tuple[int, ...]:
    """The cores for the box's device: the last ones, and never the first; none for one core."""
    return tuple(usable[1:][-min(MAX_DEVICE_CORES, max(1, len(usable) // 2)) :])


def generator_cores(device: Iterable[int]) -> set[int]:
    """The cores on which the load generator does not disturb the device; may be empty."""
    return os.sched_getaffinity(0) - set(device)


def _family(leader: int) -> list[psutil.Process]:
    """All processes of the agent: its descendants, and those that share its session."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        found = {child.pid: child for child in psutil.Process(leader).children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.pid != leader:
                found.setdefault(process.pid, process)
    return list(found.values())


def _kill(family: list[psutil.Process]) -> int:
    """Kills the processes that are still alive a moment later; returns how many those were."""
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GONE_S)
    return len(alive)


@contextlib.contextmanager
def _undisturbed() -> Any:
    """Ignores SIGINT and SIGTERM inside, which takes a few seconds at most."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

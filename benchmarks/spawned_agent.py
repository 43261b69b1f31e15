"""A real agent for the duration of a measurement."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

import configs
from scheduler import Client, Unavailable

READY_S = 90

MODELS = Path(configs.__file__).parent / "models"
"""The models that ship with laxity."""


@contextlib.contextmanager
def spawned_agent(
    folder: Path,
    models: Path,
    niceness: int = 0,
    listen: Mapping[str, str | list[str]] | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Start `edge_agent`, wait until every target is ready, and end it after the block.

    Args:
        folder: The folder for its configuration, socket, state and log.
        models: The model repository.
        niceness: The niceness of its processes; below 0 gives them priority and needs a superuser.
        listen: Its doors besides the native one.
        settings: More keys of the configuration.

    Yields:
        The URL of its native door.
    """
    url = f"unix://{folder}/bench.sock"
    doors = {"native": url, **(listen or {})}
    config = {"listen": doors, "models": str(models), "state_dir": str(folder / "state")}
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump({**config, **settings}))
    with (folder / "agent.log").open("w") as output:
        agent = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", "--config", str(file)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if niceness:
            prefer(agent.pid, niceness)
        _wait_ready(url, agent, folder / "agent.log")
        yield url
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
    finally:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


@contextlib.contextmanager
def preferred(niceness: int) -> Iterator[None]:
    """Set the niceness of this process during the block; 0 changes nothing.

    The niceness of its session is restored, because the shell that called it shares that session,
    and later commands there would otherwise keep the priority.
    """
    group = Path("/proc/self/autogroup")
    before = group.read_text().split()[-1] if niceness and group.exists() else None
    if niceness:
        prefer(os.getpid(), niceness)
    try:
        yield
    finally:
        if before is not None:
            group.write_text(before)


def prefer(pid: int, niceness: int) -> None:
    """Set the niceness of a process, its threads, and its session, which its children share."""
    for thread in psutil.Process(pid).threads():  # each thread has its own niceness
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():  # only if the kernel schedules by session first
        group.write_text(str(niceness))


def prefer_all(pid: int, niceness: int) -> None:
    """The same for a process and all its descendants, in any session; 0 changes nothing."""
    if niceness:
        found = psutil.Process(pid)
        for process in (found, *found.children(recursive=True)):
            # Any of them may end meanwhile, which each call reports differently.
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                prefer(process.pid, niceness)


def _wait_ready(url: str, agent: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and agent.poll() is None:
        with contextlib.suppress(Unavailable), Client(url, connect_timeout_s=1) as client:
            targets = client.status()["targets"]
            ready = all(target["progress"]["text"] == "ready" for target in targets)
            if ready and "Ready." in log.read_text():
                return
        time.sleep(0.1)
    raise RuntimeError(f"the agent did not get ready:\n{log.read_text()}")

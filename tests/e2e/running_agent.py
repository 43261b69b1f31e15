"""A real agent in a process of its own, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from scheduler.files import replace_file
from tests.hosts import Host
from tests.waiting import eventually

ModelsNamed = Callable[..., Path]
"""Makes a repository of models of these names."""

_MARK = "LAXITY_TEST_RUN"
_END_S = 15
_RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def marked(run: str) -> dict[str, str]:
    """The environment of processes that `processes_of` finds, and of all that they start."""
    return {**os.environ, _MARK: run}


def processes_of(run: str) -> list[psutil.Process]:
    """Every process that was started, directly or not, with the environment of a run."""
    mark, found = f"{_MARK}={run}".encode(), []
    for process in psutil.process_iter():
        # Not psutil's `environ`, which ends where Ray has written a title into it.
        with contextlib.suppress(psutil.Error, OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            if mark in environment and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def seen(run: str, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Some processes of a run, once one is seen: while Ray changes a title, none may be."""
    found: list[psutil.Process] = []

    def is_seen() -> bool:
        found[:] = filter(wanted, processes_of(run))
        return bool(found)

    eventually(is_seen)
    return found


def kill_all(run: str) -> None:
    """Ends every process of a run."""
    while alive := processes_of(run):  # Ray may have been starting one more
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive)


def policy_that_waits(folder: Path) -> tuple[Path, Path, Path]:
    """The file of a policy, what is there once it is being loaded, and what it waits for then."""
    file, begun, go_on = folder / "long.py", folder / "begun", folder / "go_on"
    file.write_text(
        "import time\nfrom pathlib import Path\nfrom policies.edf import Edf\n\n"
        f"Path({str(begun)!r}).touch()\n"
        f"while not Path({str(go_on)!r}).exists():\n    time.sleep(0.01)\n\n\n"
        "class Own(Edf):\n    pass\n"
    )
    return file, begun, go_on


def command(process: psutil.Process) -> str:
    """Its words; none of one that has just ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def name(process: psutil.Process) -> str:
    """Its name; none of one that has just ended."""
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def listening(processes: list[psutil.Process]) -> list[tuple[str, str, int]]:
    """Where processes listen for TCP: their names, IP addresses and ports."""
    names = {process.pid: name(process) for process in processes}
    return [
        (names[found.pid], *found.laddr)
        for found in psutil.net_connections("inet")
        if found.status == psutil.CONN_LISTEN and found.pid in names
    ]


def is_local(address: str) -> bool:
    """Whether no other machine can reach an IP address."""
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class RunningAgent:
    """`edge_agent` as a user would start it, ready to serve.

    Args:
        folder: For its configuration, socket and state.
        models: The model repository.
        host: Where it runs; None is this machine.
        patience_s: How long it may take to get ready.
        settings: More keys of the configuration.
    """

    def __init__(
        self,
        folder: Path,
        models: Path,
        host: Host | None = None,
        patience_s: float = 180,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/s.sock"
        self.config_file = folder / "edge.yaml"
        self.settings = {
            "models": str(models),
            "state_dir": str(folder / "state"),
            "log": {"format": "json"},
            **settings,
            "listen": {"native": self.url, **settings.get("listen", {})},
        }
        self.write_config()
        self._run = uuid.uuid4().hex
        self.lines: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-m", "edge_agent", "--config", str(self.config_file)]
        self.process = subprocess.Popen(
            host.command(*command) if host is not None else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=marked(self._run),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._ready.wait(patience_s) or self.process.poll() is not None:
            self.close()
            raise AssertionError("the agent did not get ready:\n" + "".join(self.lines))

    def write_config(self, **changes: Any) -> None:
        """Changes keys of the configuration; its file is never seen half written."""
        self.settings.update(changes)
        replace_file(self.config_file, yaml.safe_dump(self.settings))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("Ready."):
                self._ready.set()
        self._ready.set()

    def processes(self) -> list[psutil.Process]:
        """Every process that was started, directly or not, by this agent, and itself."""
        return processes_of(self._run)

    def address(self, scheme: str) -> str:
        """HOST:PORT of a door, by its URL's scheme, e.g. `http`."""
        said = f"Listening on {scheme}://"
        return next(line.strip()[len(said) :] for line in self.lines if line.startswith(said))

    def named(self, wanted: str) -> psutil.Process:
        """The process of this name, e.g. `raylet`."""
        return seen(self._run, lambda process: name(process) == wanted)[0]

    def pid_of(self, actor: str) -> int:
        """The process of a Ray actor, e.g. `WorkerProcess`."""
        return seen(self._run, lambda process: f"ray::{actor}" in command(process))[0].pid

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def left_over(self) -> list[str]:
        """What still runs some seconds after the agent ended; if nothing does, `lines` has all.

        Two of Ray's own end a minute after all others where the agent was killed.
        """
        processes = self.processes()
        killed = self.process.wait(_END_S) == -signal.SIGKILL
        if killed:
            processes = [p for p in processes if not command(p).startswith(_RAYS_AGENTS)]
        _, alive = psutil.wait_procs(processes, timeout=_END_S)
        if not alive and not killed:
            self._reader.join(_END_S)
        return [command(process) for process in alive]

    def end(self) -> None:
        """Ends it as it should end, leaving nothing behind."""
        try:
            assert self.stop() == 0
            assert self.left_over() == []
        finally:
            self.close()

    def close(self) -> None:
        """Ends whatever is left, whatever happened."""
        kill_all(self._run)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

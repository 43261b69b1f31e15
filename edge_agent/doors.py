"""The doors' processes: start, supervise, restart and drain them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import structlog

from edge_agent.errors import AgentError
from edge_agent.listening import bind
from scheduler.address import Address, plainly, spoken
from scheduler.config.box import Config
from scheduler.ingress.process import DoorSpec, Kind
from scheduler.launching import launch_folder

log = structlog.get_logger()

_OPEN_S = 30.0
_END_S = 2.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0
_STEADY_S = 10.0
"""When a door dies after running this long, in seconds, the restart backoff begins anew."""

_GRPC_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Without these, glibc returns a large message's memory after each call, and later faults it in
again."""


@dataclass(slots=True)
class _Door:
    spec: DoorSpec
    path: Path
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    process: subprocess.Popen[str] | None = None
    watcher: threading.Thread | None = None
    opened: threading.Event = field(default_factory=threading.Event)


class Doors:
    """The HTTP and gRPC doors of a box.

    Args:
        config: The box's configuration.
        run_dir: The folder for their specs.
        scheduler: The scheduler's socket for doors.
        cores: The CPU cores to run on; empty leaves that to the system.

    Attributes:
        addresses: Where they listen, as URLs that name the protocol.

    Raises:
        AgentError: An address is not available, or a door does not open.
    """

    def __init__(
        self, config: Config, run_dir: Path, scheduler: Path, cores: Sequence[int]
    ) -> None:
        """Open every door that the configuration names."""
        self._config = config
        self._stopping = threading.Event()
        self._sockets: list[socket.socket] = []
        self._doors: list[_Door] = []
        self.addresses: list[str] = []
        try:
            for kind in get_args(Kind):
                addresses: tuple[Address, ...] = getattr(config.listen, kind)
                if addresses:
                    self._prepare(kind, addresses, run_dir, scheduler, cores)
            for door in self._doors:
                door.watcher = threading.Thread(target=self._keep, args=(door,), daemon=True)
                door.watcher.start()
            for door in self._doors:
                if not door.opened.wait(_OPEN_S):
                    raise AgentError("a door did not open; see the log above")
        except BaseException:
            self.stop(0)
            raise

    def reload(self) -> None:
        """Make the doors read tokens and certificates again."""
        self._signal(signal.SIGHUP)

    def begin_drain(self) -> None:
        """Make the doors refuse new requests and end after the last answer."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def stop(self, seconds: float = _END_S) -> None:
        """Drain the doors for at most some seconds, then kill them."""
        self.begin_drain()
        end_s = time.monotonic() + seconds
        for door in self._doors:
            if door.process is None:
                continue
            try:
                door.process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                door.process.kill()
            if door.watcher is not None:
                door.watcher.join(_END_S)
        for listening in self._sockets:
            listening.close()

    def _prepare(
        self,
        kind: Kind,
        addresses: tuple[Address, ...],
        run_dir: Path,
        scheduler: Path,
        cores: Sequence[int],
    ) -> None:
        listens = kind == "http"
        bound = [bind(address, listens, self._config.listen.all) for address in addresses]
        self._sockets += [made for made, _ in bound if made is not None]
        urls = [url for _, url in bound]
        self.addresses += [spoken(kind, url) for url in urls]
        inherited = [(made.fileno(), url) for made, url in bound if made is not None and listens]
        for index in range(self._config.doors.processes):
            # A unix socket that gRPC binds itself can't be shared between processes.
            own = [url for url in urls if index == 0 or not url.startswith("unix:")]
            spec = DoorSpec(
                kind,
                self._config.model_dump(mode="json"),
                str(scheduler),
                str(run_dir / "memory"),
                list(cores) if kind == "http" else _one_core(cores, index),
                inherited,
                own,
            )
            path = run_dir / f"{kind}-{index}.json"
            environment = {**(_GRPC_MEMORY if kind == "grpc" else {}), **os.environ}
            descriptors = tuple(number for number, _ in inherited)
            self._doors.append(_Door(spec, path, environment, descriptors))

    def _keep(self, door: _Door) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stopping.is_set():
            started_s = time.monotonic()
            why = "it ended"
            try:
                self._run(door)
            except OSError as error:  # for example no memory for a new process
                why = f"it could not be started ({plainly(error)})"
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            log.warning("a door's process is started again", door=door.path.stem, reason=why)
            self._stopping.wait(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _run(self, door: _Door) -> None:
        door.spec.write(door.path)  # anew: what cleans /tmp may have removed it
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.ingress.process", str(door.path)],
            cwd=launch_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=door.descriptors,
            env=door.environment,
            start_new_session=True,
        )
        door.process = process
        assert process.stdout is not None
        assert process.stdin is not None
        with process.stdin, process.stdout:
            if self._stopping.is_set():
                process.terminate()
            for line in process.stdout:
                if '"listening"' in line:  # among whatever packages may print
                    door.opened.set()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for door in self._doors:
            if door.process is not None and door.process.poll() is None:
                door.process.send_signal(number)


def _one_core(cores: Sequence[int], index: int) -> list[int]:
    """The core for a gRPC door's Python threads: the given cores first, then the others in turn."""
    if not cores:
        return []
    others = os.sched_getaffinity(0).difference(cores)
    usable = [*cores, *sorted(others)]
    return [usable[index % len(usable)]]

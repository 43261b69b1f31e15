"""The Ray of a box: small, private, on loopback, gone when the agent is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import ray

from edge_agent.errors import AgentError
from edge_agent.rebirth import end_started
from scheduler.address import LONGEST_SOCKET_PATH

_SHUTDOWN_S = 8.0

_PARTS = frozenset(("gcs_server", "raylet"))
"""Without either of them a cluster can't go on."""

_NEEDLESS = {
    "start_monitor": "autoscaler/_private/monitor.py",
    "start_api_server": "dashboard/dashboard.py",
}
"""What Ray starts in any case, and is only needed where machines come and go, or for the dashboard:
120 MB of memory, as much as a scheduler takes. By the methods of Ray's `Node` that start it."""

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Near Ray's minimum: tensors don't travel through the object store."""


_SHARED_MEMORY = Path("/dev/shm")
_ELSEWHERE = "set TMPDIR to another folder, such as /tmp"
_log = logging.getLogger(__name__)


class Cluster:
    """A one-box Ray cluster with no dashboard.

    Args:
        folder: Where Ray keeps its files and sockets.
        cores: How many CPU cores Ray may count on.
        object_store_bytes: How much memory Ray may use for what travels between its processes.
    """

    def __init__(
        self, folder: Path, cores: int, object_store_bytes: int = _OBJECT_STORE_BYTES
    ) -> None:
        """Starts Ray; takes some seconds.

        Raises:
            AgentError: Ray can't have its sockets in that folder.
            SystemExit: SIGTERM came meanwhile. Ray has a handler of its own then; the caller's is
                in its place again afterwards.
        """
        _check_path(folder)
        self._folder = folder
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with _groups_of_their_own(), _nothing_needless():
                ray.init(
                    address="local",
                    num_cpus=max(1, cores),
                    include_dashboard=False,
                    object_store_memory=object_store_bytes,
                    namespace="laxity",
                    logging_level=logging.WARNING,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(folder),
                    _plasma_directory=_store_folder(folder),
                )
        except BaseException:
            end_started(folder)
            raise
        finally:
            signal.signal(signal.SIGTERM, handler)
        _end_needless()

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Tells, from a thread of its own and once, which part of Ray has died.

        Ray itself notices that its head is gone after a minute, and then ends everything; when
        its node manager is gone it ends the actors at once, and nothing brings them back.
        """
        parts = [p for p in psutil.Process().children(recursive=True) if p.name() in _PARTS]
        watched = {os.pidfd_open(part.pid): part.name() for part in parts}

        def watch() -> None:
            poll = select.poll()
            for number in watched:
                poll.register(number, select.POLLIN)
            dead, _ = poll.poll()[0]
            on_death(watched[dead])

        threading.Thread(target=watch, name="laxity-ray-watch", daemon=True).start()

    def stop(self) -> None:
        """Ends Ray and all its processes.

        Ray may wait without end for processes that somebody else has ended already; what it has not
        ended in time is killed, also what nobody is the parent of any more.
        """
        started = psutil.Process().children(recursive=True)
        shutdown = threading.Thread(target=ray.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(_SHUTDOWN_S)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        end_started(self._folder)


def _check_path(folder: Path) -> None:
    longest = f"{folder}/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
    if not longest.isascii():
        raise AgentError(f"Ray takes no path but of ASCII, not {folder}; {_ELSEWHERE}")
    if len(longest) > LONGEST_SOCKET_PATH:
        many = len(longest) - LONGEST_SOCKET_PATH
        told = f"Ray's sockets in {folder} have paths that are {many} bytes too long"
        raise AgentError(f"{told}; {_ELSEWHERE}")


def _store_folder(folder: Path) -> str | None:
    """Where Ray's processes share memory, unless it can choose: it fails where it can't write."""
    if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return None
    _log.warning("%s can't be written: Ray shares memory in files of %s", _SHARED_MEMORY, folder)
    return str(folder)


_leaving = threading.local()


@contextlib.contextmanager
def _groups_of_their_own() -> Iterator[None]:
    """What this thread starts meanwhile is in no process group of the agent's.

    A signal to that (`kill %1`, `timeout`, a terminal that closes) would end Ray beneath an agent
    that drains. Ray has no option for it, but it starts all its parts with a `preexec_fn`; then
    `subprocess` calls what was registered at forks.
    """
    _leaving.group = True
    try:
        yield
    finally:
        _leaving.group = False


def _leave_group() -> None:
    if getattr(_leaving, "group", False):
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_group)


@contextlib.contextmanager
def _nothing_needless() -> Iterator[None]:
    """Ray starts nothing needless meanwhile, and doesn't wait for it: a second.

    It has no option for this, and these methods are its own affair: one that it has under another
    name some day starts what `_end_needless` ends.
    """
    node = getattr(sys.modules.get("ray._private.node"), "Node", None)
    kept = {name: getattr(node, name) for name in _NEEDLESS if hasattr(node, name)}
    for name in kept:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(node, name, method)


def _end_needless() -> None:
    needless = tuple(_NEEDLESS.values())
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(word.endswith(needless) for word in process.cmdline()):
                process.kill()
                process.wait(_SHUTDOWN_S)

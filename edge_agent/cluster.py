"""A box's Ray cluster: small, private, on loopback, and gone when the agent is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import ray

from edge_agent.errors import AgentError
from edge_agent.needless import end_needless, nothing_needless
from edge_agent.rebirth import end_started
from edge_agent.terminal import SIGNALS, signals_held
from scheduler.address import LONGEST_SOCKET_PATH
from scheduler.launching import launch_folder
from workers.runtimes.base import one_line

_SHUTDOWN_S = 8.0

_STARTS = 3
"""How often Ray is started at most. It gives its node manager's helpers 15 s, and all of it 30 s,
which is too little on a small machine where everything else starts at the same time."""

_LONGEST = 2_000
"""The most characters that are shown of what Ray says about a start."""

_PARTS = frozenset(("gcs_server", "raylet"))
"""The processes without which a cluster can't go on."""

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Near Ray's minimum, because tensors don't travel through the object store."""


_HOST = "127.0.0.1"
"""Where Ray's parts listen and find each other."""

_SHARED_MEMORY = Path("/dev/shm")
_ELSEWHERE = "set TMPDIR to another folder, such as /tmp"
_log = logging.getLogger(__name__)


class Cluster:
    """A one-box Ray cluster without a dashboard.

    Args:
        folder: The folder for Ray's files and sockets.
        cores: The number of CPU cores that Ray may use.
        object_store_bytes: The memory of Ray's object store.
    """

    def __init__(
        self, folder: Path, cores: int, object_store_bytes: int = _OBJECT_STORE_BYTES
    ) -> None:
        """Start Ray, which takes some seconds; signals are held back meanwhile.

        Raises:
            AgentError: Ray can't put its sockets in that folder, or can't be started.
        """
        _check_path(folder)
        _check_host()
        self._folder = folder
        for starts_left in reversed(range(_STARTS)):
            try:
                with nothing_needless() if starts_left else contextlib.nullcontext():
                    self._start(cores, object_store_bytes)
                break
            except Exception as error:
                told = one_line(error, _LONGEST)
                if not starts_left:  # of any kind, plain `Exception` on a busy machine
                    raise AgentError(f"Ray can't be started: {told}") from error
                _log.warning("Ray did not start and is started again: %s", told)
        end_needless()

    def _start(self, cores: int, object_store_bytes: int) -> None:
        try:
            with signals_held(), _groups_of_their_own(), _in_launch_folder():
                ray.init(
                    address="local",
                    num_cpus=max(1, cores),
                    include_dashboard=False,
                    object_store_memory=object_store_bytes,
                    namespace="laxity",
                    logging_level=logging.WARNING,
                    _node_ip_address=_HOST,
                    _temp_dir=str(self._folder),
                    _plasma_directory=_store_folder(self._folder),
                )
        except BaseException:
            end_started(self._folder)
            raise

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Call `on_death` once, from another thread, with the part of Ray that has died.

        Ray itself takes a minute to notice that its head (`gcs_server`) is gone, and then ends
        everything. When its node manager (`raylet`) is gone it ends the actors at once, and nothing
        restarts them.
        """
        watched: dict[int, str] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if (name := process.name()) in _PARTS:
                    watched[os.pidfd_open(process.pid)] = name

        def watch() -> None:
            poll = select.poll()
            for number in watched:
                poll.register(number, select.POLLIN)
            dead, _ = poll.poll()[0]
            on_death(watched[dead])

        threading.Thread(target=watch, name="laxity-ray-watch", daemon=True).start()

    def stop(self) -> None:
        """End Ray and all its processes.

        Ray may wait for ever for processes that somebody else has already ended. Processes that it
        has not ended in time are killed, orphans included.
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
        raise AgentError(f"Ray needs an ASCII path, not {folder}; {_ELSEWHERE}")
    if len(longest) > LONGEST_SOCKET_PATH:
        many = len(longest) - LONGEST_SOCKET_PATH
        told = f"Ray's sockets in {folder} have paths that are {many} bytes too long"
        raise AgentError(f"{told}; {_ELSEWHERE}")


def _check_host() -> None:
    """Without the address, Ray would wait for its parts for half a minute, and not say why."""
    with socket.socket() as own:
        try:
            own.bind((_HOST, 0))
        except OSError as error:
            raise AgentError(
                f"Ray needs the address {_HOST}, which can't be used here: {error.strerror}; "
                f"ip address add {_HOST}/8 dev lo, and ip link set lo up"
            ) from None


def _store_folder(folder: Path) -> str | None:
    """The folder for Ray's shared memory, or None for Ray's default, which must be writable."""
    if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return None
    _log.warning(
        "%s can't be written: Ray keeps shared memory in files in %s", _SHARED_MEMORY, folder
    )
    return str(folder)


@contextlib.contextmanager
def _in_launch_folder() -> Iterator[None]:
    """Be in the launch folder within the block: Ray tells its workers where its driver is."""
    before = os.open(".", os.O_PATH | os.O_CLOEXEC)  # it may have been removed, or moved meanwhile
    try:
        os.chdir(launch_folder())
        yield
    finally:
        os.fchdir(before)
        os.close(before)


_leaving = threading.local()


@contextlib.contextmanager
def _groups_of_their_own() -> Iterator[None]:
    """Put each process that this thread starts within the block into its own process group.

    Signals that are held back here are not held back there.

    A signal to the agent's group (`kill %1`, `timeout`, a terminal that closes) would otherwise end
    Ray under an agent that is draining. Ray has no option for this, but it starts all its parts
    with a `preexec_fn`, and then `subprocess` runs the functions registered for forks.
    """
    _leaving.group = True
    try:
        yield
    finally:
        _leaving.group = False


def _leave_group() -> None:
    if getattr(_leaving, "group", False):
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


os.register_at_fork(after_in_child=_leave_group)

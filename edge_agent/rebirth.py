"""Start the agent over in its own process when Ray has died.

Actors can't outlive the Ray that runs them, and a process can't get rid of a half-dead Ray: threads
of its library may end the process at any moment. So the agent executes itself again at once. It
keeps its process id, which a service manager watches, and its log. The next life begins by ending
what is left of the previous one. Signals that arrive between the two lives count in the next.

What the next life lacks may come back, such as a file that is being edited. So a life that can't
start makes way for another one after a pause. Only the first one does not, because somebody is
there to read why.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from edge_agent.listening import remove_stale
from edge_agent.run_dir import is_in_own, is_its_lock
from edge_agent.terminal import SIGNALS
from scheduler.address import Address, parse_address

_MARK = "LAXITY_AGENT_LIFE"
_PAST = "LAXITY_AGENT_PAST"
_PAST_FOLDER = "LAXITY_AGENT_PAST_FOLDER"
_PAST_LISTEN = "LAXITY_AGENT_PAST_LISTEN"
_FAILED = "LAXITY_AGENT_SHORT_LIVES"

SHORT_LIFE_S = 60.0
"""After a life shorter than this, in seconds, the next one waits; the wait doubles each time."""

_LONGEST_WAIT_S = 30.0
_PAUSE_S = 3.0
_HEARD = "signals"
"""File in a life's folder with the numbers of the signals that the life has received."""

_ROUNDS = 5
"""How many times processes of a past life are searched: while some die, others may start."""


def mark_life(folder: Path) -> None:
    """Mark every process that is started from now on as one of this life, and note its signals.

    Call this in the main thread.

    Args:
        folder: The folder of this life's files.
    """
    os.environ[_MARK] = uuid.uuid4().hex
    flags = os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
    signal.set_wakeup_fd(os.open(folder / _HEARD, flags, 0o600))


def is_first_life() -> bool:
    """Whether nothing has served in this process before."""
    return _FAILED not in os.environ


def start_over(born_s: float, folder: Path, listen: Iterable[Address]) -> None:
    """Begin the next life, with signals blocked; does not return.

    Args:
        born_s: When this life began, on the monotonic clock.
        folder: The folder of this life's files, which the next life removes.
        listen: Where this life listens; the next one, whose configuration may be another or have
            mistakes, removes the files of these sockets.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    short = int(os.environ.get(_FAILED, "0")) + 1 if time.monotonic() - born_s < SHORT_LIFE_S else 0
    told = {
        _FAILED: str(short),
        _PAST: os.environ[_MARK],
        _PAST_FOLDER: str(folder),
        _PAST_LISTEN: "\n".join(map(str, listen)),
    }
    _execute({**os.environ, **told})


def try_again(stopped: Callable[[], bool] = lambda: False) -> None:
    """Begin one more life after a pause, because this one could not start; nothing of it is left.

    Returns at once in a first life, or if a signal has come; one during the pause ends the process.
    Call this in the main thread.

    Args:
        stopped: Returns whether a signal has come before.
    """
    if is_first_life():
        return
    heeded = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if stopped():
        return
    print(f"Trying once more in {_PAUSE_S:.0f} s.", file=sys.stderr, flush=True)
    if signal.sigtimedwait(heeded, _PAUSE_S) is not None or stopped():  # by another thread
        sys.exit()
    _execute(os.environ)


def _execute(environment: Mapping[str, str]) -> None:
    """Execute this program again, without the files that Ray's library would leave open in it.

    Each life would keep three log files of every earlier one, and their room on the disk. Only the
    lock of this life's folder stays held: another agent would remove the folder.
    """
    for number, path in _open_files(psutil.Process()):
        if is_in_own(path):
            os.set_inheritable(number, is_its_lock(path))
    os.execve(sys.executable, sys.orig_argv, environment)


def end_started(folder: Path) -> None:
    """End every process that this life has started or that has files open in its folder."""
    _end_all(os.environ.get(_MARK, ""), str(folder))


def end_past_life() -> None:
    """End what a previous life in this process has left, if there was one.

    A signal that it received as it ended is raised again, for when signals are no longer blocked.
    """
    life = os.environ.pop(_PAST, None)
    if life is None:
        return
    folder = os.environ.pop(_PAST_FOLDER)
    _end_all(life, folder)
    remove_stale(map(parse_address, os.environ.pop(_PAST_LISTEN).splitlines()))
    with contextlib.suppress(OSError):
        if Path(folder, _HEARD).stat().st_size:
            signal.raise_signal(signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)
    for number, path in _open_files(psutil.Process()):
        if is_in_own(path):
            os.close(number)  # its lock


def rest_after_short_lives() -> None:
    """Wait if several lives in a row were short, longer each time."""
    short = int(os.environ.get(_FAILED, "0"))
    if short > 1:
        time.sleep(min(_LONGEST_WAIT_S, 2.0 ** (short - 1)))


def _killed(life: str, folder: str) -> list[psutil.Process]:
    own, found = os.getpid(), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != own and _is_of(process, life, folder):
                process.kill()
                found.append(process)
    return found


def _is_of(process: psutil.Process, life: str, folder: str) -> bool:
    """Whether a process belongs to a life, by its environment or its open files.

    Ray overwrites the environment of some processes with their titles, but these keep log files
    open, which count also if they have been removed.
    """
    return process.environ().get(_MARK) == life or any(
        path.startswith(f"{folder}/") for _, path in _open_files(process)
    )


def _open_files(process: psutil.Process) -> Iterator[tuple[int, str]]:
    """The descriptors of a process, and the path of each.

    Not psutil's `open_files`, which leaves out removed files.
    """
    with contextlib.suppress(OSError):  # it has just ended
        for number in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield int(number.name), os.readlink(number)


def _end_all(life: str, folder: str) -> None:
    """End the processes of a life, whatever their parent is now."""
    for _ in range(_ROUNDS):
        found = _killed(life, folder)
        if not found:
            break
        psutil.wait_procs(found, timeout=5)
    # Direct children of the past life are now children of this process, and must not look as if
    # they had died just now.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass

"""Starting the agent over in its own process, when what it stands on is gone.

Actors can't outlive the Ray that runs them, and a process can't get rid of a Ray that is half dead.
So every process of this life is ended and the agent executes itself once more: it keeps its number,
which is what a service manager watches, and its log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid

import psutil

_MARK = "LAXITY_AGENT_LIFE"
_FAILED = "LAXITY_AGENT_SHORT_LIVES"

SHORT_LIFE_S = 60.0
"""Who lived no longer than this waits before the next life, each time twice as long."""

_LONGEST_WAIT_S = 30.0


def mark_life() -> None:
    """Lets every process that is started from now on be known as one of this life."""
    os.environ[_MARK] = uuid.uuid4().hex


def start_over(born_s: float) -> None:
    """Ends all that was started in this life, and begins the next one; does not return.

    Args:
        born_s: When this life began, on the monotonic clock.
    """
    short = int(os.environ.get(_FAILED, "0")) + 1 if time.monotonic() - born_s < SHORT_LIFE_S else 0
    os.environ[_FAILED] = str(short)
    _end_all()
    if short > 1:
        time.sleep(min(_LONGEST_WAIT_S, 2.0 ** (short - 1)))
    os.execv(sys.executable, sys.orig_argv)


def _end_all() -> None:
    """Ends the processes of this life, whoever their parent is by now."""
    life, own = os.environ[_MARK], os.getpid()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != own and process.environ().get(_MARK) == life:
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=5)
    # What this process has started itself stays its child in the next life; it must not look as
    # if it had died there.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass

"""The folder of one run of the agent: sockets and Ray's files, gone when the run is."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "laxity-run-"
_LOCK = "lock"


def make_run_dir() -> Path:
    """A fresh folder that only this user can enter, and this process's until it ends.

    It has a short path, because Ray and the workers put unix sockets below it, whose paths may
    have 107 bytes. Folders of this user's runs that were killed are removed.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_PREFIX}*"):
        if not _is_used(old):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder


def _is_used(folder: Path) -> bool:
    """By its lock: in another container the same number is another process.

    Another user's is not looked into: everybody can make folders here, and put into them whatever
    this process would stumble over.
    """
    try:
        if folder.lstat().st_uid != os.geteuid():
            return True
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # about to be locked, or of a version that locked none
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        return not pid.isdigit() or _is_alive(int(pid))
    except OSError:  # no folder of a run
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

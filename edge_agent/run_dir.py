"""The folder of one run of the agent, for sockets and Ray's files; removed after the run."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from edge_agent.errors import AgentError
from edge_agent.state_lock import is_locked, open_lock

_PREFIX = "laxity-run-"
_LOCK = "lock"

_LEAST_BYTES = 1_000_000
"""Ray writes a tenth of this at its start. Without room it waits for its own files for a minute and
a half, and then names one of them, not the disk."""


def make_run_dir() -> Path:
    """Make a folder that only this user can enter, locked until this process ends.

    Its path is short, because Ray and the workers put unix sockets below it, whose paths are
    limited to 107 bytes. Folders of this user's killed runs are removed.

    Raises:
        AgentError: There is no folder for it that can be written, or no room.
    """
    try:
        root = _root()
        for old in root.glob(f"{_PREFIX}*"):
            if not _is_used(old):
                shutil.rmtree(old, ignore_errors=True)
        return _made_in(root)
    except OSError as error:
        raise AgentError(
            f"no folder can be made for sockets and Ray's files: {error.strerror}; make room in "
            f"{tempfile.tempdir or '/tmp'}, or set TMPDIR to another folder"
        ) from None


def _made_in(root: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_own_prefix(), dir=root))
    try:
        # Without its name until it is locked: another agent may look.
        made = folder / f"{_LOCK}.new"
        lock = open_lock(made)
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(folder / _LOCK)
        # Only writing tells: root has room that others lack, and users and groups have quotas.
        if os.pwrite(lock, bytes(_LEAST_BYTES), 0) < _LEAST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(lock, 0)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def is_in_own(path: str) -> bool:
    """Whether a path without links is below a folder of this process, whichever life made it."""
    return path.startswith(f"{_root().resolve() / _own_prefix()}")


def is_its_lock(path: str) -> bool:
    """Whether such a path is that of a folder's lock, for as long as the folder is there."""
    return Path(path).name == _LOCK


def _root() -> Path:
    return Path(tempfile.gettempdir())


def _own_prefix() -> str:
    return f"{_PREFIX}{os.getpid()}-"


def _is_used(folder: Path) -> bool:
    """Whether a run still uses its folder, by its lock.

    The process id is not enough, because in another container it is another process. Folders of
    other users count as used: anybody can make folders here with contents that would trip this
    process.
    """
    try:
        if folder.lstat().st_uid != os.geteuid():
            return True
        return is_locked(folder / _LOCK)
    except FileNotFoundError:  # not locked yet, or from a version without locks
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        return not pid.isdigit() or _is_alive(int(pid))
    except OSError:  # not the folder of a run
        return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

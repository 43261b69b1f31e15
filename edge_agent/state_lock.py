"""Make sure that a state folder exists, is writable, and belongs to one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent.errors import AgentError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextmanager
def made(state_dir: Path) -> Iterator[None]:
    """Make a state folder if needed, and blame it for OS errors within the block.

    Raises:
        AgentError: The folder can't be made, or the block can't write to it.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        mend = "make room" if error.errno in _FULL else "let this user write"
        raise AgentError(
            f"the state folder {state_dir} can't be written: {error.strerror}; {mend} there, or "
            "set another state_dir"
        ) from None


def locked(state_dir: Path, who: str) -> int:
    """Lock a state folder, so that no two processes of a kind write the same files.

    Args:
        state_dir: The folder; made if needed.
        who: The kind of process that locks it, in one word.

    Returns:
        The descriptor that holds the lock until it is closed or the process ends.

    Raises:
        AgentError: Another process holds the lock, or the folder can't be written or locked.
    """
    with made(state_dir):
        lock = open_lock(state_dir / f"{who}.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise AgentError(
            f"another {who} uses {state_dir}; stop it, or set another state_dir"
        ) from None
    except OSError as error:  # as on a network share without a lock service
        os.close(lock)
        raise AgentError(
            f"the state folder {state_dir} can't be locked: {error.strerror}; set another state_dir"
        ) from None
    return lock


def open_lock(path: Path) -> int:
    """Open a lock file, made if needed; return its descriptor, which child processes don't get."""
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def is_held(state_dir: Path, who: str) -> bool:
    """Tell whether a process of a kind holds a state folder; False if the lock can't be read."""
    try:
        return is_locked(state_dir / f"{who}.lock")
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the exclusive lock of a file.

    Raises:
        OSError: The file can't be opened.
    """
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def mask_writing() -> None:
    """Let nobody else change what this process and those that it starts write from now on.

    Some inits set no mask at all, and code that was compiled for a device would be anybody's.
    """
    os.umask(os.umask(0o077) | 0o022)

"""A state folder is there, can be written, and belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent.errors import AgentError


@contextmanager
def made(state_dir: Path) -> Iterator[None]:
    """Makes a state folder if need be, and says of what fails meanwhile that it is this folder.

    Raises:
        AgentError: It can't be made, or what is done meanwhile can't be written there.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise AgentError(
            f"the state folder {state_dir} can't be written: {error.strerror}; let this user write "
            "there, or set another state_dir"
        ) from None


def locked(state_dir: Path, who: str) -> int:
    """Holds a state folder, so that no two of a kind write the same files.

    Args:
        state_dir: The folder; made if need be.
        who: What holds it, in one word.

    Returns:
        The descriptor that holds it, until it is closed or the process ends.

    Raises:
        AgentError: Another one holds it, or it can't be written.
    """
    with made(state_dir):
        lock = os.open(state_dir / f"{who}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise AgentError(
            f"another {who} uses {state_dir}; stop it, or set another state_dir"
        ) from None
    return lock


def is_held(state_dir: Path, who: str) -> bool:
    """Whether something of a kind holds a state folder; False where that can't be seen."""
    try:
        lock = os.open(state_dir / f"{who}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False

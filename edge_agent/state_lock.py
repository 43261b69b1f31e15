"""A state folder belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from edge_agent.errors import AgentError


def locked(state_dir: Path, who: str) -> int:
    """Holds a state folder, so that no two of a kind write the same files.

    Args:
        state_dir: The folder.
        who: What holds it, in one word.

    Returns:
        The descriptor that holds it, until it is closed or the process ends.

    Raises:
        AgentError: Another one holds it.
    """
    lock = os.open(state_dir / f"{who}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise AgentError(
            f"another {who} uses {state_dir}; stop it, or set another state_dir"
        ) from None
    return lock

"""The folder of one run of the agent: sockets and Ray's files, gone when the run is."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "laxity-run-"


def make_run_dir() -> Path:
    """A fresh folder that only this user can enter.

    It has a short path, because Ray and the workers put unix sockets below it, whose paths may
    have 107 bytes. Folders of runs that were killed are removed.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_PREFIX}*"):
        pid = old.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

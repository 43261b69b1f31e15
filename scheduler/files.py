"""Files that are whole at any moment: for who reads them meanwhile, and after a loss of power."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from scheduler.core.names import hint


def replace_file(
    path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666
) -> None:
    """Puts a file where one may be already; who opens it has the one or the other, whole.

    Args:
        path: Where; the folder is there.
        content: What the file is to hold; text as UTF-8.
        durable: Whether to wait until it is on disk, which may take 100 ms. Without it a loss of
            power soon afterwards may, on some file systems, leave an empty file.
        mode: Who may do what with it, less the umask.

    Raises:
        OSError: It can't be written; what was there is as it was.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def hint_beside(path: Path, pattern: str = "*") -> str:
    """For an error: the file beside one that is missing that was probably meant; or nothing."""
    try:
        others = [] if path.exists() else [each.name for each in path.parent.glob(pattern)]
    except OSError:
        others = []
    return hint(path.name, others)

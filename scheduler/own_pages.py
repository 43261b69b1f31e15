"""Shared memory that this process creates; see `scheduler.shared_pages`."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref

from scheduler.shared_pages import SharedPages

# Nobody can make it smaller, which would kill every process that then reads what is gone (SIGBUS).
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class OwnPages(SharedPages):
    """Shared memory that this process created.

    Attributes:
        close: Lets nobody else open it; those who have it mapped keep it.
    """

    def __init__(self, size: int) -> None:
        """Creates it; the size is rounded up to whole pages.

        Raises:
            OSError: The kernel doesn't grant it.
        """
        size += -size % mmap.PAGESIZE
        self._fd = os.memfd_create("laxity-bodies", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.close = weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        super().__init__(self._fd, size, writable=True)

    def where(self) -> dict[str, int]:
        """What others need to open it."""
        inode = os.fstat(self._fd).st_ino
        return {"pid": os.getpid(), "fd": self._fd, "inode": inode, "bytes": self.size}

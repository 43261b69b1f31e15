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
        fd = os.memfd_create("laxity-bodies", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.close = weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        inode = os.fstat(fd).st_ino
        where = {"pid": os.getpid(), "fd": fd, "inode": inode, "bytes": size}
        super().__init__(fd, where, writable=True)

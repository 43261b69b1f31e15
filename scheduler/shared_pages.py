"""Memory that processes of one user share, so that large tensors aren't sent between them.

One process creates it and tells others where it is. They open it through the creator's entry in
`/proc`, which the kernel grants to processes of the same user only; so it has no name in a file
system, and nothing remains of it when all have ended. Processes that don't see each other, such as
those of two containers, can't share it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST_BYTES = 128 * 1024
"""Smaller bodies are cheaper to send."""

KEPT_BYTES = 32 << 20
"""How much of it keeps its memory once it has been used; what lies behind is freed once it has not
been used for some seconds. Freeing and getting it again takes far longer than a copy."""

TIDY_S = 5.0
"""How often to free what has not been used since the last time."""

_WHERE = ("pid", "fd", "inode", "bytes")

Block = np.ndarray[Any, np.dtype[np.uint8]]


class SharedPages:
    """A mapping of shared memory; only what is used of it takes memory.

    Attributes:
        where: What others need to open it: `pid`, `fd`, `inode` and `bytes`.
        size: Its bytes.
        first_address: Where it begins in this process.
    """

    def __init__(self, fd: int, where: dict[str, int], writable: bool) -> None:
        """Maps an open file, which stays the caller's; as in `opened`.

        Raises:
            OSError: It can't be mapped.
        """
        self.where = where
        self.size = where["bytes"]
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, self.size, prot=access)
        self.first_address = address_of(memoryview(self._map))

    def block(self, start: int, size: int) -> Block:
        """A part of it; it and the mapping last as long as any array or view made of it.

        Raises:
            TypeError, ValueError: It has no such part.
        """
        if not 0 <= start <= self.size - size:
            raise ValueError(f"no {size} bytes at {start} of {self.size}")
        # Not a part of another array: NumPy would make that the base of arrays made of this one,
        # and let this one go.
        part: Block = np.ndarray(size, np.uint8, self._map, start)
        return part

    def write(self, start: int, parts: Sequence[Any]) -> None:
        """Copies buffers there, one after the other."""
        for part in parts:
            self.block(start, len(part))[:] = np.frombuffer(part, np.uint8)  # frees the GIL
            start += len(part)

    def read(self, start: int, into: memoryview) -> None:
        """Copies a part of it."""
        np.copyto(np.frombuffer(into, np.uint8), self.block(start, len(into)))  # frees the GIL

    def free(self, start: int, size: int) -> None:
        """Frees the memory of whole pages, whose content is lost."""
        self._map.madvise(mmap.MADV_REMOVE, start, size)


def opened(where: Mapping[str, Any], writable: bool) -> SharedPages:
    """Maps memory that another process has created.

    Args:
        where: The other's `SharedPages.where`, or anything at all.
        writable: Whether it is written, too.

    Raises:
        OSError: It can't be seen from here: the other process runs as another user, or in another
            container. Or it is not said where.
    """
    try:
        return _opened(where, writable)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise OSError(f"it is not said where the memory is: {error!r}") from None


def _opened(where: Mapping[str, Any], writable: bool) -> SharedPages:
    mode = os.O_RDWR if writable else os.O_RDONLY
    path = f"/proc/{where['pid']:d}/fd/{where['fd']:d}"
    # In another container, the number may be that of a process that has anything open there, such
    # as a device, so this looks before it opens.
    _check(path, os.stat(path), where)
    fd = os.open(path, mode | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(fd), where)  # the number may have been given to another meanwhile
        return SharedPages(fd, {name: where[name] for name in _WHERE}, writable)
    finally:
        os.close(fd)


def _check(path: str, found: os.stat_result, where: Mapping[str, Any]) -> None:
    if (found.st_ino, found.st_size) != (where["inode"], where["bytes"]):
        raise FileNotFoundError(f"{path} is something else here: it is of another container")


class Blocks:
    """Places bodies in shared memory, as low as possible.

    The same pages are then used again and again, and are mapped already.

    Args:
        pages: The memory, of which nothing else is used.
    """

    def __init__(self, pages: SharedPages) -> None:
        """Empty."""
        self._pages = pages
        self._taken: dict[int, int] = {}
        self._free = [(0, pages.size)]
        self._reached = 0
        self._touched = KEPT_BYTES

    def take(self, size: int) -> int | None:
        """Where a body of so many bytes, at least one, may be; None if there is no room."""
        size += -size % mmap.PAGESIZE
        for index, (start, free) in enumerate(self._free):
            if free >= size:
                self._free[index : index + 1] = [(start + size, free - size)] * (free > size)
                self._taken[start] = size
                self._reached = max(self._reached, start + size)
                self._touched = max(self._touched, self._reached)
                return start
        return None

    def give_back(self, start: int) -> None:
        """Nobody uses the body any more that is there.

        Raises:
            KeyError: There is none.
        """
        size = self._taken.pop(start)
        index = bisect_left(self._free, (start, size))
        end = start + size
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end - start))

    @property
    def is_large(self) -> bool:
        """Whether more than `KEPT_BYTES` have memory."""
        return self._touched > KEPT_BYTES

    def free_unused(self) -> None:
        """Frees the memory beyond `KEPT_BYTES` of which nothing was used since the last call."""
        end = max(KEPT_BYTES, self._reached)
        if self._touched > end:
            with contextlib.suppress(OSError):  # it stays in memory if this process has locked it
                self._pages.free(end, self._touched - end)
            self._touched = end
        self._reached = max((start + size for start, size in self._taken.items()), default=0)


def address_of(body: memoryview) -> int:
    """Where its first byte is in this process."""
    address: int = np.frombuffer(body, np.uint8).__array_interface__["data"][0]
    return address

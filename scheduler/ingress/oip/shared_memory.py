"""Shared memory that clients name for inputs and outputs: its registry, and access to its bytes.

Regions are read and written through their file, not mapped. A client that shrinks its region after
registering it would kill every process that has it mapped (SIGBUS); this way it gets an error.

A region registered at one door is registered at all: the registry is a folder with a folder for
each tenant, in which each region has a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import Forbidden, InvalidInput
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.ingress.oip.request import ReadRegion, Region
from scheduler.tenants import Tenant

NO_CUDA = "CUDA shared memory is not supported; system shared memory is"
"""Why a region of a GPU's memory is refused."""

_MEMORY = Path("/dev/shm")
_MOST_REGIONS = 1024


@dataclass(frozen=True, slots=True)
class Registered:
    """A region that a client has named; no other tenant's requests can name it.

    Attributes:
        name: The region's name in requests.
        key: The memory object's name, as given to `shm_open`.
        offset: Where the region begins in the object, in bytes.
        byte_size: The region's size.
    """

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemory:
    """The registry of shared-memory regions.

    Args:
        folder: The registry's folder; None if shared memory is off.
    """

    def __init__(self, folder: Path | None) -> None:
        """Uses the regions that are already registered."""
        self._folder = folder
        self._read: dict[Path, tuple[tuple[int, int], Registered]] = {}
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    def register(self, tenant: Tenant, name: str, key: Any, offset: Any, byte_size: Any) -> None:
        """Registers a region.

        Raises:
            InvalidInput: An argument is wrong, the memory does not exist or is too small, the name
                is taken, or the tenant has too many regions.
            Forbidden: The tenant may not use shared memory.
        """
        path = self._path(tenant, name)
        if (
            not isinstance(key, str)
            or not isinstance(offset, int)
            or not isinstance(byte_size, int)
        ):
            raise InvalidInput("key is a string, offset and byte_size are integers")
        if offset < 0 or byte_size < 1:
            raise InvalidInput("offset is at least 0 and byte_size at least 1")
        region = Registered(name, key, offset, byte_size)
        descriptor = _open(region)
        os.close(descriptor)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if len(list(path.parent.iterdir())) >= _MOST_REGIONS:
            raise InvalidInput(
                f"{tenant.name!r} has {_MOST_REGIONS} regions already; unregister some"
            )
        written = path.with_name(f".{os.getpid()}")
        written.write_text(json.dumps(asdict(region)))
        try:
            os.link(written, path)  # atomic, and fails if the name is taken
        except FileExistsError:
            raise InvalidInput(f"shared memory region {name!r} is registered already") from None
        finally:
            written.unlink()

    def unregister(self, tenant: Tenant, name: str = "") -> None:
        """Unregisters one region, or all of the tenant's.

        Raises:
            Forbidden: The tenant may not use shared memory.
        """
        for region in self.status(tenant, name):
            with contextlib.suppress(FileNotFoundError):
                self._path(tenant, region.name).unlink()

    def status(self, tenant: Tenant, name: str = "") -> list[Registered]:
        """The regions that the tenant has registered, or the one with that name.

        Raises:
            Forbidden: The tenant may not use shared memory.
        """
        folder = self._path(tenant, name).parent
        found = []
        for path in sorted(folder.glob("[!.]*")):
            with contextlib.suppress(FileNotFoundError):
                region = self._registered(path)
                if name in ("", region.name):
                    found.append(region)
        return found

    def reader(self, tenant: Tenant, most_bytes: int, hold: Callable[[int], None]) -> ReadRegion:
        """A function that reads the inputs of one request, each as `read` does.

        Args:
            tenant: Who asks.
            most_bytes: How many bytes the inputs may have together. The regions themselves set no
                limit: they may be sparse, and be named many times.
            hold: Counts bytes before they are read.
        """
        left = most_bytes

        def read(part: Region) -> memoryview:
            nonlocal left
            if part.size > left:
                raise TooLarge(
                    f"the inputs in shared memory have more than the {most_bytes} bytes that one "
                    "request may have"
                )
            hold(part.size)
            left -= part.size
            return self.read(tenant, part)

        return read

    def read(self, tenant: Tenant, part: Region) -> memoryview:
        """Reads a part of a region.

        Raises:
            InvalidInput: The part is not within the region, or its memory is gone or has shrunk.
            Forbidden: The tenant may not use shared memory.
        """
        region = self._containing(tenant, part)
        data = np.empty(part.size, np.uint8).data
        descriptor = _open(region)
        try:
            count = os.preadv(descriptor, [data], region.offset + part.offset)
        finally:
            os.close(descriptor)
        if count != part.size:
            raise InvalidInput(f"shared memory region {part.name!r} has become smaller")
        return data

    def write(self, tenant: Tenant, part: Region, data: memoryview) -> None:
        """Writes bytes to a part of a region.

        Raises:
            InvalidInput: The bytes don't fit, or the memory is gone or can't be written.
            Forbidden: The tenant may not use shared memory.
        """
        region = self._containing(tenant, part)
        if len(data) > part.size:
            raise InvalidInput(
                f"the output takes {len(data)} bytes, {part.size} of shared memory region "
                f"{part.name!r} are given for it"
            )
        descriptor = _open(region)
        try:
            count = os.pwrite(descriptor, data, region.offset + part.offset)
        except OSError as error:
            raise InvalidInput(
                f"shared memory region {part.name!r} can't be written: {error.strerror}"
            ) from None
        finally:
            os.close(descriptor)
        if count != len(data):  # a sparse region, for which memory ran out
            raise InvalidInput(
                f"shared memory region {part.name!r} took {count} bytes of {len(data)}; {_MEMORY} "
                "may be full"
            )

    def _containing(self, tenant: Tenant, part: Region) -> Registered:
        try:
            region = self._registered(self._path(tenant, part.name))
        except FileNotFoundError:
            raise InvalidInput(f"shared memory region {part.name!r} is not registered") from None
        if part.offset + part.size > region.byte_size:
            raise InvalidInput(
                f"shared memory region {part.name!r} has {region.byte_size} bytes; "
                f"{part.offset} to {part.offset + part.size} is beyond"
            )
        return region

    def _registered(self, path: Path) -> Registered:
        """The region in a file of the registry, which is read again only if it has changed."""
        found = path.stat()
        stamp = found.st_ino, found.st_mtime_ns
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            if len(self._read) > _MOST_REGIONS:
                self._read.clear()
            known = self._read[path] = stamp, Registered(**json.loads(path.read_text()))
        return known[1]

    def _path(self, tenant: Tenant, name: str) -> Path:
        tenant.check_scope("shared_memory")
        if self._folder is None:
            raise Forbidden("shared memory is off on this box (doors.shared_memory)")
        digest = hashlib.sha256(name.encode(errors="surrogatepass"))
        return self._folder / tenant.name / digest.hexdigest()


def _open(region: Registered) -> int:
    """Opens the memory object, which must be a regular file directly in /dev/shm."""
    name = region.key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise InvalidInput(f"shared memory key {region.key!r:.80} is not /NAME")
    try:
        descriptor = os.open(
            _MEMORY / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"unable to open shared memory region: {region.key!r:.80}: {reason}"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size < region.offset + region.byte_size:
        os.close(descriptor)
        raise InvalidInput(
            f"shared memory {region.key!r:.80} has {found.st_size} bytes, "
            f"the region ends at {region.offset + region.byte_size}"
        )
    return descriptor

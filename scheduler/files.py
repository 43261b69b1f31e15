"""Files that are complete at any moment, for concurrent readers and after a power loss."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path

from scheduler.core.names import hint

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


def replace_file(
    path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666
) -> None:
    """Writes or replaces a file atomically: readers see either the old or the new one, complete.

    Args:
        path: Where to write it; the folder must exist.
        content: The file's content; text is encoded as UTF-8.
        durable: Whether to wait until it is on disk, which may take 100 ms. Otherwise a power loss
            soon afterwards may leave an empty file on some file systems.
        mode: The file's permissions, less the umask.

    Raises:
        OSError: It can't be written; an existing file is unchanged.
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


def stamp_of(path: Path) -> tuple[int, ...]:
    """A value that differs between states of a file; empty if the file can't be read."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_regular(path: Path) -> bytes:
    """Reads a file that is read more than once, as a pipe and a device can't be.

    Raises:
        OSError: It can't be read, or is no regular file; nothing is waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise OSError(errno.EINVAL, "it is read more than once, and must be a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until the entries of a folder are on disk.

    Raises:
        OSError: They can't be written.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: Path, content: str | bytes) -> None:
    """Writes a command's output where its caller wants it.

    A file is written as by `replace_file`. It keeps the symlinks to it, and its permissions, less
    the umask.

    Raises:
        OSError: It can't be written; an existing file is unchanged if it can be replaced.
    """
    if not is_replaceable(path):
        # Opened by its name, a file to which stdout goes would be written from its start again.
        stream = _STREAMS.get(str(path))
        with open(path if stream is None else stream, "wb", closefd=stream is None) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return
    real = Path(os.path.realpath(path))
    mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o666
    replace_file(real, content, mode=mode)


def is_replaceable(path: Path) -> bool:
    """Whether an output can be replaced whole.

    /dev/stdout, a pipe, a mounted file and a file in a folder that takes no others can't.
    """
    real = os.path.realpath(path)
    takes_others = os.access(os.path.dirname(real), os.W_OK)
    is_fixed = os.path.exists(real) and not (os.path.isfile(real) and takes_others)
    return not (is_fixed or os.path.ismount(real) or path.is_relative_to("/dev"))


NO_FOLDER = "there is no such folder"
"""The fault of a folder that is not there."""


def folder_fault(folder: Path) -> str | None:
    """Why a folder can't be listed, as the end of a message that names it; None if it can."""
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return NO_FOLDER
    except NotADirectoryError:
        return "not a folder"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return None


def hint_beside(path: Path, pattern: str = "*") -> str:
    """For an error about a missing file: the neighbouring one that was probably meant, if any."""
    try:
        others = [] if path.exists() else [each.name for each in path.parent.glob(pattern)]
    except OSError:
        others = []
    return hint(path.name, others)

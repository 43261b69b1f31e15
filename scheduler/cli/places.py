"""Checks where results may be written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scheduler.cli.streams import WrongUsage
from scheduler.files import is_replaceable

STDOUT = Path("-")
"""Stands for standard output, where an option allows it in place of a file."""


def check_places(
    *paths: Path | None, read: Iterable[str | None] = (), begin: bytes | None = None
) -> None:
    """Checks, before long work, that its results can be written to these files.

    Args:
        paths: The files to write.
        read: The files that the work reads.
        begin: The bytes with which results begin. An existing file that begins with another byte is
            not a result but may be an input, and is not replaced; None allows any file.

    Raises:
        WrongUsage: A file can't be written there, is named twice, is read, or is not a result.
    """
    sources = {os.path.realpath(each) for each in read if each and os.path.exists(each)}
    places = [path for path in paths if path is not None]
    real = [os.path.realpath(path) for path in places]
    if len(set(real)) < len(real):
        raise WrongUsage(f"{max(real, key=real.count)} is named twice")
    for path in places:
        if str(path) == "-":
            raise WrongUsage("- is not a file; name one to write to, or /dev/stdout")
        if os.path.realpath(path) in sources:
            raise WrongUsage(f"{path} is an input; name another file to write to")
        if begin is not None and _is_else(path, begin):
            raise WrongUsage(f"{path} exists and is not a result; name another file to write to")
        if os.path.isdir(path):
            raise WrongUsage(f"{path} is a folder; name a file to write to")
        if not os.path.isdir(path.absolute().parent):
            raise WrongUsage(f"{path}: there is no folder {path.parent}")
        if not all(os.access(each, os.W_OK) for each in _touched(path)):
            raise WrongUsage(f"{path} can't be written by this user")


def _touched(path: Path) -> list[Path]:
    """What must be writable: an existing file, and the folder in which it is made or replaced."""
    existing = [path] if os.path.exists(path) else []
    folder = Path(os.path.realpath(path)).parent
    return [*existing, folder] if is_replaceable(path) or not existing else existing


def _is_else(path: Path, begin: bytes) -> bool:
    if not os.path.isfile(path) or path.is_relative_to("/dev"):
        return False
    with suppress(OSError), path.open("rb") as file:
        first = file.read(256).lstrip()[:1]
        return first != b"" and first not in begin
    return False

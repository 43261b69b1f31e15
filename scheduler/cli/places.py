"""Where results may be written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scheduler.cli.inputs import InputProblem

STDOUT = Path("-")
"""In place of a file, where that is allowed."""


def check_places(
    *paths: Path | None, read: Iterable[str | None] = (), begin: bytes | None = None
) -> None:
    """Makes sure, before long work, that files could be where its results are to be written.

    Args:
        paths: Where.
        read: What the work reads.
        begin: With which of these bytes results begin. A file that begins with another one is
            something else, which the work may well read, and is not replaced; None for any file.

    Raises:
        InputProblem: One could not, two would be the same, or one is read or something else.
    """
    sources = {os.path.realpath(each) for each in read if each and os.path.exists(each)}
    places = [path for path in paths if path is not None]
    real = [os.path.realpath(path) for path in places]
    if len(set(real)) < len(real):
        raise InputProblem(f"{max(real, key=real.count)} is named twice")
    for path in places:
        if str(path) == "-":
            raise InputProblem("- is no file; name one to write to, or /dev/stdout")
        if os.path.realpath(path) in sources:
            raise InputProblem(f"{path} is what is read; name another file to write to")
        if begin is not None and _is_else(path, begin):
            raise InputProblem(f"{path} is there, and no result; name another file to write to")
        if path.is_dir():
            raise InputProblem(f"{path} is a folder; name a file to write to")
        if not path.absolute().parent.is_dir():
            raise InputProblem(f"{path}: there is no folder {path.parent}")


def _is_else(path: Path, begin: bytes) -> bool:
    if not path.is_file() or path.is_relative_to("/dev"):
        return False
    with suppress(OSError), path.open("rb") as file:
        first = file.read(256).lstrip()[:1]
        return first != b"" and first not in begin
    return False

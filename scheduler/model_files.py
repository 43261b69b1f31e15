"""A model's files in transfer: the manifest, and which names may become paths here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import InvalidInput

MOST_FILES = 256
"""The most files that one model may have."""

CHUNK_BYTES = 1 << 20
"""How much is read or sent at once."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a model.

    Attributes:
        path: Its path within the model's folder, with slashes.
        sha256: The digest of its bytes, in hex.
        size: The number of bytes; None if the source does not say.
    """

    path: str
    sha256: str
    size: int | None = None


def checked_entries(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Checks that every entry stays within the folder it is put in, and returns the entries.

    Raises:
        InvalidInput: One does not or has no digest, there are none or too many, or a path repeats.
    """
    found = list(entries)
    if not 0 < len(found) <= MOST_FILES or len({e.path for e in found}) < len(found):
        raise InvalidInput(f"a model has 1 to {MOST_FILES} files of different names")
    for entry in found:
        parts = entry.path.split("/")
        if len(parts) > _DEEPEST or not all(map(_PART.fullmatch, parts)):
            raise InvalidInput(
                f"a model's file is named by up to {_DEEPEST} plain words, not {entry.path!r:.200}"
            )
        if _SHA256.fullmatch(entry.sha256) is None:
            raise InvalidInput(f"the digest of {entry.path!r} is no SHA-256 in hex")
    return found


def entries_of(folder: Path) -> list[FileEntry]:
    """The files of a model's folder; links and hidden files are left out.

    Raises:
        InvalidInput: As in `checked_entries`.
        OSError: A file can't be read.
    """
    return checked_entries(_scan(folder))


def _scan(folder: Path) -> Iterator[FileEntry]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if hidden or path.is_symlink() or not path.is_file():
            continue
        yield FileEntry(relative.as_posix(), digest_of(path), path.stat().st_size)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def entries_from_sums(text: str) -> list[FileEntry]:
    """Parses a file written by `sha256sum`.

    Raises:
        InvalidInput: It is not such a file, or as in `checked_entries`.
    """
    entries = []
    for line in filter(None, map(str.rstrip, text.splitlines())):
        digest, separator, path = line.partition("  ")
        if not separator:
            digest, separator, path = line.partition(" *")
        if not separator:
            raise InvalidInput(f"SHA256SUMS has lines of `sha256sum`, not {line!r:.100}")
        entries.append(FileEntry(path.removeprefix("./"), digest))
    return checked_entries(entries)

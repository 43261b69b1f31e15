"""Read the kernel's small files, some of which are missing on some boxes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def text_of(path: Path) -> str | None:
    """A small file's text without its line end, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """The whole number in a file, or None."""
    text = text_of(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def field_of(path: Path, name: str) -> str | None:
    """What a file's first line `name: value` says, or None."""
    for line in (text_of(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def bytes_of(path: Path, name: str) -> int | None:
    """The bytes in a file's line `name: 1024 kB`, or None."""
    said = field_of(path, name)
    return None if said is None else int(said.split()[0]) * 1024


class Standing(NamedTuple):
    """A process's state as the kernel reports it.

    Attributes:
        state: The state of its main thread, as a letter of proc(5).
        cpu_ticks: The CPU time of all its threads, in clock ticks.
        started_ticks: When it started, in clock ticks since the machine did; with the process id it
            names a process, also after the wall clock has been set.
    """

    state: str
    cpu_ticks: int
    started_ticks: int


def standing(pid: int, root: Path = Path("/")) -> Standing | None:
    """The current state of a process; None where it cannot be read.

    Args:
        pid: The process id.
        root: Where `/proc` is found.
    """
    # Skip the process name in brackets, which may itself hold blanks and brackets.
    fields = (text_of(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return Standing(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (ValueError, IndexError):
        return None

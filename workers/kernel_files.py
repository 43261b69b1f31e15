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


class Standing(NamedTuple):
    """A process's state as the kernel reports it.

    Attributes:
        state: The state of its main thread, as a letter of proc(5).
        cpu_ticks: The CPU time of all its threads, in clock ticks.
    """

    state: str
    cpu_ticks: int


def standing(pid: int, root: Path = Path("/")) -> Standing | None:
    """The current state of a process; None where it cannot be read.

    Args:
        pid: The process id.
        root: Where `/proc` is found.
    """
    # Skip the process name in brackets, which may itself hold blanks and brackets.
    fields = (text_of(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return Standing(fields[0], int(fields[11]) + int(fields[12]))
    except (ValueError, IndexError):
        return None

"""The kernel's small files. Which of them exist differs from box to box."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def text_of(path: Path) -> str | None:
    """A small file's text without its end of line, or None where it cannot be read."""
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
    """What the kernel says of a process.

    Attributes:
        state: Its main thread's, as a letter of proc(5).
        cpu_ticks: What all its threads have computed, in clock ticks.
    """

    state: str
    cpu_ticks: int


def standing(pid: int, root: Path = Path("/")) -> Standing | None:
    """How a process stands now; None where that can't be known.

    Args:
        pid: Its number.
        root: Where `/proc` is found.
    """
    # What is in front, the name in brackets, may hold blanks and brackets itself.
    fields = (text_of(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return Standing(fields[0], int(fields[11]) + int(fields[12]))
    except (ValueError, IndexError):
        return None

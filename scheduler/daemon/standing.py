"""How a process of this machine stands that says nothing: stopped, waiting, or busy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Standing(NamedTuple):
    """What the kernel says of a process.

    Attributes:
        state: Its main thread's, as a letter of proc(5).
        cpu_ticks: What all its threads have computed, in clock ticks.
    """

    state: str
    cpu_ticks: int


def standing(pid: int) -> Standing | None:
    """How a process stands now; None where that can't be known."""
    try:
        # What is in front, the name in brackets, may hold blanks and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Standing(fields[0], int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None


def why_silent(pid: int, before: Standing | None, now: Standing | None) -> str:
    """In words for people, why a process may say nothing.

    Args:
        pid: Its number.
        before: How it stood a while ago.
        now: And how it stands since.
    """
    if now is None or before is None:
        return "its process says nothing; is it stopped?"
    if now.state in "Tt":
        return f"its process is stopped; kill -CONT {pid} lets it go on"
    if now.cpu_ticks > before.cpu_ticks:
        return "its process computes and says nothing; a library may hold Python's lock for so long"
    if now.state == "D":
        return "its process waits for a disk or a driver that doesn't answer, and says nothing"
    return "its process waits for something, and says nothing"

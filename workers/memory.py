"""How much main memory a process may still take."""

from __future__ import annotations

from pathlib import Path

from workers.control_group import own_groups
from workers.kernel_files import text_of
from workers.model_files import weight_bytes

_SHORTAGES = ("bad_alloc", "bad allocation", "MemoryError", "MemoryAllocation", "out of memory")
"""What C++, Python and CUDA call it."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """The memory that can still be had, in bytes; None where the kernel does not say.

    It is what proc(5) calls `MemAvailable`, or what the process's control group has left, if
    that is less (cgroup-v2.rst: `memory.max`, `memory.current`; cgroup-v1/memory.rst:
    `memory.limit_in_bytes`, `memory.usage_in_bytes`). Files that the group has cached count as
    left, for the kernel drops them first.
    """
    limits = [
        left for folder in own_groups(root, "memory") if (left := _left_in(folder)) is not None
    ]
    available = _meminfo(root)
    if available is not None:
        limits.append(available)
    return min(limits, default=None)


def resident_bytes(root: Path = Path("/")) -> int:
    """The main memory that this process takes now, in bytes; 0 where the kernel does not say."""
    for line in (text_of(root / "proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return int(value.split()[0]) * 1024
    return 0


def lack_of_room(path: Path, available: int | None) -> str | None:
    """Say that a model cannot fit into the memory that is left, or None.

    Its files are the least that it takes: libraries keep the weights, if not twice.

    Args:
        path: The model file.
        available: Bytes that are left, or None where nobody knows.
    """
    size = weight_bytes(path)
    if available is None or size <= available:
        return None
    return (
        f"too large for memory: the weights of '{path.name}' take {size / 1e6:,.1f} MB and "
        f"{available / 1e6:,.1f} MB are left"
    )


def name_shortage(path: Path, reason: str) -> str:
    """Put in words what libraries say when memory runs out while they read or load a model.

    Args:
        path: The model file.
        reason: Why a library could not take it.

    Returns:
        The reason, which begins with the shortage if that is what it was.
    """
    if not any(word in reason for word in _SHORTAGES):
        return reason
    return f"too large for memory: its weights take {weight_bytes(path) / 1e6:,.1f} MB; {reason}"


def _meminfo(root: Path) -> int | None:
    for line in (text_of(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _left_in(folder: Path) -> int | None:
    limit = _first(folder, "memory.max", "memory.limit_in_bytes")
    current = _first(folder, "memory.current", "memory.usage_in_bytes")
    if not limit.isdecimal() or not current.isdecimal():
        return None
    return max(0, int(limit) - int(current) + _cached(folder))


def _first(folder: Path, *names: str) -> str:
    """What the first of some files that is there holds."""
    return next(filter(None, (text_of(folder / name) for name in names)), "")


def _cached(folder: Path) -> int:
    lines = (line.partition(" ") for line in (text_of(folder / "memory.stat") or "").splitlines())
    counts = {name: value for name, _, value in lines}
    # Version 1 counts the groups below apart; they are within the limit as well.
    return int(counts.get("total_inactive_file") or counts.get("inactive_file") or 0)

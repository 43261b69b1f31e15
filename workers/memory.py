"""How much main memory a process can still use."""

from __future__ import annotations

from pathlib import Path

from workers.control_group import own_groups
from workers.kernel_files import bytes_of, text_of
from workers.model_files import weight_bytes

_SHORTAGES = ("bad_alloc", "bad allocation", "MemoryError", "MemoryAllocation", "out of memory")
"""How errors of C++, Python and CUDA name a lack of memory."""

_LIMITS = "memory.max", "memory.limit_in_bytes"
"""Files of a control group, of version 2 and 1."""


def available_bytes(root: Path) -> int | None:
    """The memory still available, in bytes; None where the kernel does not say.

    This is `MemAvailable` of proc(5), or what the process's control group has left if that is less
    (cgroup-v2.rst: `memory.max`, `memory.current`; cgroup-v1/memory.rst:
    `memory.limit_in_bytes`, `memory.usage_in_bytes`). Files that the group has cached count as
    available, because the kernel drops them first.
    """
    limits = [
        left for folder in own_groups(root, "memory") if (left := _left_in(folder)) is not None
    ]
    available = bytes_of(root / "proc/meminfo", "MemAvailable")
    if available is not None:
        limits.append(available)
    return min(limits, default=None)


def total_bytes(root: Path) -> int:
    """The memory that this process and all others of its control group may use, in bytes.

    Raises:
        ValueError: The kernel does not say how much memory there is.
    """
    meminfo = root / "proc/meminfo"
    installed = bytes_of(meminfo, "MemTotal")
    if installed is None:
        raise ValueError(f"{meminfo} has no line MemTotal")
    limits = [_first(folder, *_LIMITS) for folder in own_groups(root, "memory")]
    return min([installed, *(int(limit) for limit in limits if limit.isdecimal())])


def resident_bytes(root: Path = Path("/")) -> int:
    """The main memory this process uses now, in bytes; 0 where the kernel does not say.

    Memory that it shares, such as that of large inputs, is not its own.
    """
    status = root / "proc/self/status"
    return (bytes_of(status, "VmRSS") or 0) - (bytes_of(status, "RssShmem") or 0)


def lack_of_room(path: Path, available: int | None) -> str | None:
    """Explain that a model cannot fit into the available memory, or return None.

    A model takes at least the size of its files: libraries keep the weights once or twice.

    Args:
        path: The model file.
        available: The available bytes, or None where unknown.
    """
    size = weight_bytes(path)
    if available is None or size <= available:
        return None
    return (
        f"too large for memory: the weights of '{path.name}' take {size / 1e6:,.1f} MB and "
        f"{available / 1e6:,.1f} MB are left"
    )


def name_shortage(path: Path, reason: str) -> str:
    """Say plainly when a library's error means that memory ran out while loading a model.

    Args:
        path: The model file.
        reason: The library's error.

    Returns:
        The reason, prefixed with the shortage if there was one.
    """
    if not any(word in reason for word in _SHORTAGES):
        return reason
    return f"too large for memory: its weights take {weight_bytes(path) / 1e6:,.1f} MB; {reason}"


def _left_in(folder: Path) -> int | None:
    limit = _first(folder, *_LIMITS)
    current = _first(folder, "memory.current", "memory.usage_in_bytes")
    if not limit.isdecimal() or not current.isdecimal():
        return None
    return max(0, int(limit) - int(current) + _cached(folder))


def _first(folder: Path, *names: str) -> str:
    """The content of the first file that exists and is not empty."""
    return next(filter(None, (text_of(folder / name) for name in names)), "")


def _cached(folder: Path) -> int:
    lines = (line.partition(" ") for line in (text_of(folder / "memory.stat") or "").splitlines())
    counts = {name: value for name, _, value in lines}
    # Version 1 has a separate total with child groups, whose usage counts against the limit too.
    return int(counts.get("total_inactive_file") or counts.get("inactive_file") or 0)

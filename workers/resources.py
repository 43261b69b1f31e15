"""What of its box a device's process takes: cores, priority, memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from workers.control_group import ControlGroupError, join_group
from workers.runtimes.base import DeviceError, DeviceSpec


def pin_thread(device: DeviceSpec) -> None:
    """Keep the calling thread, and those that it starts, on a device's cores.

    Raises:
        DeviceError: Not all of the cores can be had.
    """
    if not device.cores:
        return
    wanted = set(device.cores)
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        present = os.cpu_count()
        raise DeviceError(
            f"{device.id}: cannot run on cores {sorted(wanted)} of {present}: {error}"
        ) from error
    granted = os.sched_getaffinity(0)
    if granted != wanted:
        raise DeviceError(
            f"{device.id}: of cores {sorted(wanted)} only {sorted(granted)} can be had"
        )


def limit_process(device: DeviceSpec, root: Path = Path("/")) -> list[str]:
    """Hold this process to a device's limits, by a control group where one may be made.

    Without a control group the kernel limits the data segment instead (setrlimit(2),
    `RLIMIT_DATA`): allocations beyond it fail, and with them a model's load.

    Args:
        device: Whose limits.
        root: Where `/proc` and `/sys` are found.

    Returns:
        What was set, in words.
    """
    said = []
    limits = device.limits
    if limits.nice:
        # Lower than what this process was given would take a privilege. Threads inherit it.
        os.setpriority(os.PRIO_PROCESS, 0, max(limits.nice, os.getpriority(os.PRIO_PROCESS, 0)))
        said.append(f"nice {limits.nice}")
    if limits.memory_bytes is None:
        return said
    amount = f"{limits.memory_bytes / 1e6:,.0f} MB of memory"
    try:
        join_group(device.id.replace(":", "-"), limits.memory_bytes, root)
        said.append(f"{amount}, by its control group")
    except ControlGroupError as error:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        ceiling = limits.memory_bytes if hard < 0 else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
        said.append(f"{amount}, by RLIMIT_DATA ({error})")
    return said

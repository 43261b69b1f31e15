"""Apply a device's limits to its process: cores, priority, memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from workers.control_group import ControlGroupError, join_group
from workers.runtimes.base import DeviceError, DeviceSpec


def pin_thread(device: DeviceSpec) -> None:
    """Pin the calling thread, and threads it starts later, to a device's cores.

    Raises:
        DeviceError: Not all of the cores are available.
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
            f"{device.id}: of cores {sorted(wanted)} only {sorted(granted)} are available"
        )


def limit_process(device: DeviceSpec, root: Path) -> list[str]:
    """Hold this process to a device's limits, by a control group where possible.

    Without a control group the kernel limits the data segment instead (setrlimit(2),
    `RLIMIT_DATA`): allocations beyond it fail, and so does the load of the model that needed them.

    Args:
        device: The device with the limits.
        root: Where `/proc` and `/sys` are found.

    Returns:
        Descriptions of the limits that were set.
    """
    said = []
    limits = device.limits
    if limits.nice:
        # Going below the current niceness needs a privilege. Threads inherit the niceness.
        os.setpriority(os.PRIO_PROCESS, 0, max(limits.nice, os.getpriority(os.PRIO_PROCESS, 0)))
        said.append(f"nice {limits.nice}")
    if limits.memory_bytes is None:
        return said
    amount = f"{limits.memory_bytes / 1e6:,.0f} MB of memory"
    try:
        join_group(device.file_name, limits.memory_bytes, root)
        said.append(f"{amount}, by its control group")
    except ControlGroupError as error:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        ceiling = limits.memory_bytes if hard < 0 else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
        said.append(f"{amount}, by RLIMIT_DATA ({error})")
    return said

"""Finds causes of deadline misses in the machine, from the kernel's files.

If a file is missing, as in many containers, its check is skipped.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.doctor.findings import Finding, Surroundings
from workers.kernel_files import standing, text_of
from workers.memory import total_bytes

_LOOK_S = 0.5
"""How long to observe the CPU use of other processes."""

_HEAVY, _STOLEN = 0.5, 0.05
"""Least CPU use of a process, as a share of a core, and least steal time, as a share of all time,
that are reported."""

_SWAPPED_BYTES = 64 * 2**20
_STALLED_PERCENT = 1.0

_SCALES_BY_ITSELF = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose `powersave` governor raises the clock with the load; all others keep it low."""

_OWN = ("ray::", "raylet", "gcs_server", "edge_agent", "scheduler.ingress", "/ray/", "laxity")
"""Substrings of the command lines of a box's own processes."""


def is_of_a_box(command: str) -> bool:
    """Whether a command line belongs to a process of a box."""
    return any(own in command for own in _OWN)


def check_processor(around: Surroundings) -> Iterator[Finding]:
    """Finds low CPU clocks, a CPU quota, and other busy processes."""
    slow = sorted(
        folder.parent.name.removeprefix("cpu")
        for folder in (around.root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")
        if text_of(folder / "scaling_governor") == "powersave"
        and text_of(folder / "scaling_driver") not in _SCALES_BY_ITSELF
    )
    if slow:
        yield Finding(
            "processor",
            "warning",
            f"governor powersave keeps the clock of processor {', '.join(slow)} at its lowest",
            "cpupower frequency-set -g schedutil, or performance; earlier measurements "
            "are then repeated automatically",
        )
    quota = list(_check_quota(around.root))
    yield from quota
    before = _look(around.root)
    time.sleep(_LOOK_S)
    others = list(_check_others(before, _look(around.root)))
    yield from others
    if not (slow or quota or others):
        yield Finding("processor", "good", "nothing slows it down, and no other process is busy")


def _check_quota(root: Path) -> Iterator[Finding]:
    from edge_agent.processors import allowed_cpus, quota_cores

    quota = quota_cores(root)
    count = len(allowed_cpus(root))
    if quota is not None and quota < count:
        yield Finding(
            "processor",
            "warning",
            f"processes here may compute {quota:g} s in each second, and have {count} processors: "
            "when that is used up, all of them stop, for up to 100 ms",
            "give the box cores instead (docker run --cpuset-cpus=…, AllowedCPUs= of a systemd "
            f"unit), or a quota of {count} (--cpus, CPUQuota={count * 100}%)",
        )


@dataclass(frozen=True, slots=True)
class Look:
    """CPU time used up to now, in clock ticks.

    Attributes:
        all: Total time of all processors.
        stolen: Time that the hypervisor gave to other machines.
        by_pid: CPU time of each process, and its command line.
    """

    all: int
    stolen: int
    by_pid: dict[int, tuple[int, str]]


def _look(root: Path) -> Look:
    first, *_ = (text_of(root / "proc/stat") or "cpu").splitlines()
    ticks = [int(field) for field in first.split()[1:9]]
    by_pid: dict[int, tuple[int, str]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        pid = int(folder.name)
        stood = standing(pid, root)
        command = (text_of(folder / "cmdline") or "").replace("\0", " ")
        if stood is not None and command:  # kernel threads have no command line
            by_pid[pid] = stood.cpu_ticks, command
    return Look(sum(ticks), ticks[7] if len(ticks) > 7 else 0, by_pid)


def _check_others(before: Look, after: Look) -> Iterator[Finding]:
    whole = after.all - before.all
    if whole <= 0:
        return
    stolen = (after.stolen - before.stolen) / whole
    if stolen >= _STOLEN:
        yield Finding(
            "processor",
            "warning",
            f"the hypervisor gave {stolen:.0%} of this machine's processors to other machines",
            "give this machine processors of its own, or a larger share of them",
        )
    core = whole / (os.cpu_count() or 1)
    for pid, (ticks, command) in after.by_pid.items():
        used = (ticks - before.by_pid[pid][0]) / core if pid in before.by_pid else 0.0
        if used >= _HEAVY and pid != os.getpid() and not is_of_a_box(command):
            yield Finding(
                "processor",
                "warning",
                f"process {pid} ({command:.40}) takes {used:.0%} of a core beside the box",
                "keep it off the box's cores (taskset, CPUAffinity=), or the box off its: "
                "devices: [{id: cpu:0, cores: […]}]; or end it",
            )


def check_memory(around: Surroundings) -> Iterator[Finding]:
    """Finds memory that is swapped out or too small, and huge pages that stall processes."""
    found = [*_check_room(around), *_check_swap(around.root), *_check_pages(around.root)]
    yield from found or (Finding("memory", "good", "none of it is swapped out"),)


def _check_room(around: Surroundings) -> Iterator[Finding]:
    with suppress(ValueError):
        megabytes = total_bytes(around.root) / 1e6
        if 2 * around.config.limits.queue_mb > megabytes:
            yield Finding(
                "memory",
                "warning",
                f"waiting requests may take limits.queue_mb: {around.config.limits.queue_mb}, and "
                f"the box has {megabytes:,.0f} MB for that and everything else",
                "lower it, or let the box have more (docker run --memory, MemoryMax= of a systemd "
                "unit); the kernel kills a process of the box when it runs out",
            )


def _check_swap(root: Path) -> Iterator[Finding]:
    lines = (text_of(root / "proc/swaps") or "").splitlines()[1:]
    used = sum(int(line.split()[3]) for line in lines if len(line.split()) > 3) * 1024
    if used >= _SWAPPED_BYTES:
        yield Finding(
            "memory",
            "warning",
            f"{used / 1e6:,.0f} MB of memory are swapped out: what needs them waits for the disk",
            "make room, then swapoff -a && swapon -a brings them back; sysctl vm.swappiness=1, or "
            "MemorySwapMax=0 of a systemd unit, keeps them",
        )
    some = (text_of(root / "proc/pressure/memory") or "").partition("avg60=")[2].partition(" ")[0]
    stalled = float(some or 0)
    if stalled >= _STALLED_PERCENT and not math.isnan(stalled):
        yield Finding(
            "memory",
            "warning",
            f"something waited for memory {stalled:g} % of the last minute",
            "run less beside the box, or give its models less room: model_memory_mb of a device",
        )


def _check_pages(root: Path) -> Iterator[Finding]:
    folder = root / "sys/kernel/mm/transparent_hugepage"
    enabled, defrag = (text_of(folder / name) or "" for name in ("enabled", "defrag"))
    if "[always]" in enabled and "[always]" in defrag:
        yield Finding(
            "memory",
            "warning",
            "huge pages are made while a process waits for memory, for milliseconds at a time",
            "echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        )


def check_open_files(around: Surroundings) -> Iterator[Finding]:
    """Finds a limit on open files that is too low for the configured connections."""
    from edge_agent.open_files import LEAST

    connections = around.config.limits.connections
    wanted = LEAST + connections
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        yield Finding("open files", "good", f"limits.connections: {connections} is possible")
        return
    yield Finding(
        "open files",
        "error" if hard < LEAST else "warning",
        f"processes started here may have {hard} files open, and limits.connections: "
        f"{connections} needs {wanted}",
        f"ulimit -n {wanted}, LimitNOFILE={wanted} of a systemd unit, or fewer connections",
    )

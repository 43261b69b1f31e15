"""Read a box's CPU from the kernel's files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from workers.control_group import own_groups
from workers.kernel_files import field_of, text_of

_ISA_OF_INTEREST = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""The extensions that make a CPU multiply matrices faster, by the kernel's names, x86 first."""

_ARM_PARTS = {
    ("0x41", "0xd03"): "Arm Cortex-A53",
    ("0x41", "0xd05"): "Arm Cortex-A55",
    ("0x41", "0xd07"): "Arm Cortex-A57",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd41"): "Arm Cortex-A78",
    ("0x41", "0xd42"): "Arm Cortex-A78AE",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd83"): "Arm Neoverse-V3AE",
    ("0x4e", "0x004"): "NVIDIA Carmel",
}
"""(implementer, part) of Arm's MIDR_EL1 registers to name, because Arm cores don't report one."""


@dataclass(frozen=True)
class Cpu:
    """The part of the CPU that this process may use.

    Attributes:
        model: Its name.
        architecture: `x86_64` or `aarch64`.
        cores: The usable threads of each physical core, as the kernel's CPU numbers.
        quota_cores: The control group's limit on CPU time, in CPUs; None without a limit.
        isa: Instruction set extensions that matter to inference, by the kernel's names.
    """

    model: str
    architecture: str
    cores: tuple[tuple[int, ...], ...]
    quota_cores: float | None
    isa: tuple[str, ...]

    @property
    def usable(self) -> tuple[int, ...]:
        """The kernel's numbers of all usable CPUs, in order."""
        return tuple(sorted(thread for core in self.cores for thread in core))

    def lacks(self, cores: Iterable[int]) -> list[int]:
        """Which of these, by the kernel's numbers, are not usable; in order."""
        return sorted(set(cores).difference(self.usable))


def probe_cpu(root: Path) -> Cpu:
    """Read the CPU, and the part of it that the affinity mask and the control group allow.

    If the control group allows the time of fewer CPUs than the affinity mask has, only that many
    are used: with more threads, all would be throttled together in the middle of a batch.
    """
    info = _cpuinfo(root)
    quota = quota_cores(root)
    allowed = allowed_cpus(root)
    cores = _physical_cores(root, allowed)
    if quota is not None and quota < len(allowed):
        cores = _first_threads(cores, max(1, math.floor(quota)))
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Cpu(
        model=_model_name(info),
        architecture="x86_64" if "vendor_id" in info else "aarch64",
        cores=cores,
        quota_cores=quota,
        isa=tuple(name for name in _ISA_OF_INTEREST if name in flags),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines of `/proc/cpuinfo`."""
    text = (root / "proc/cpuinfo").read_text("utf-8")
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _model_name(info: dict[str, str]) -> str:
    if "model name" in info:
        return info["model name"]
    implementer, part = info.get("CPU implementer", "?"), info.get("CPU part", "?")
    unknown = f"Arm CPU (implementer {implementer}, part {part})"
    return _ARM_PARTS.get((implementer, part), unknown)


def allowed_cpus(root: Path) -> list[int]:
    """This process's CPUs: those of the affinity mask that are online, as it may name others."""
    present = _cpu_list(text_of(root / "sys/devices/system/cpu/online") or "")
    status = root / "proc/self/status"
    mask = field_of(status, "Cpus_allowed_list")
    if mask is None:
        raise ValueError(f"{status} has no line Cpus_allowed_list")
    allowed = _cpu_list(mask)
    return [cpu for cpu in allowed if cpu in present] or allowed


def _cpu_list(text: str) -> list[int]:
    """Parse the kernel's list format, e.g. `0-3,8`."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _physical_cores(root: Path, allowed: list[int]) -> tuple[tuple[int, ...], ...]:
    """Group the allowed CPUs by physical core."""
    groups: dict[str, list[int]] = {}
    for cpu in allowed:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        # Some containers hide the topology; each CPU then counts as a core.
        key = text_of(siblings) or str(cpu)
        groups.setdefault(key, []).append(cpu)
    return tuple(tuple(group) for group in groups.values())


def _first_threads(cores: tuple[tuple[int, ...], ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Choose a number of threads, on as many physical cores as possible."""
    rounds = range(max(len(core) for core in cores))
    order = [core[turn] for turn in rounds for core in cores if turn < len(core)]
    chosen = set(order[:count])
    kept = (tuple(thread for thread in core if thread in chosen) for core in cores)
    return tuple(core for core in kept if core)


def quota_cores(root: Path) -> float | None:
    """The tightest CPU limit of this process's control group and its ancestors, in CPUs."""
    quotas = [
        quota for folder in own_groups(root, "cpu") if (quota := _quota_in(folder)) is not None
    ]
    return min(quotas, default=None)


def _quota_in(folder: Path) -> float | None:
    quota, _, period = (text_of(folder / "cpu.max") or "").partition(" ")
    if not quota:
        quota = text_of(folder / "cpu.cfs_quota_us") or ""
        period = text_of(folder / "cpu.cfs_period_us") or ""
    # `max`, -1 and anything that is not a number set no limit.
    if not quota.isdecimal() or not period.isdecimal() or not int(quota) or not int(period):
        return None
    return int(quota) / int(period)

"""The hardware of a box, found by probing and never by configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edge_agent.accelerators import Accelerator, Found, is_shown, nvidia_gpus, openvino_devices
from edge_agent.processors import Cpu, probe_cpu
from scheduler.config.devices import DeviceConfig
from workers.memory import total_bytes
from workers.runtimes import RUNTIMES

CudaRuntime = Literal["onnxruntime-cuda", "onnxruntime-tensorrt", "tensorrt"]

_CUDA_RUNTIMES: tuple[CudaRuntime, ...] = ("onnxruntime-cuda", "onnxruntime-tensorrt", "tensorrt")
"""Runtimes that serve at once come before those that build for minutes."""

_COMPUTE_CAPABILITY = {
    "tegra210": "5.3",
    "tegra186": "6.2",
    "tegra194": "7.2",
    "tegra234": "8.7",
    "tegra264": "11.0",
}
"""By Tegra chip; from NVIDIA's table at https://developer.nvidia.com/cuda-gpus."""


@dataclass(frozen=True)
class Tegra:
    """An NVIDIA system on a chip, as on Jetson boards.

    Attributes:
        board: The board's name.
        chip: The chip, e.g. `tegra234`.
        l4t: The release of Jetson Linux, e.g. `36.4.3`; None on other systems.
    """

    board: str
    chip: str
    l4t: str | None


@dataclass(frozen=True)
class Hardware:
    """The part of a box's hardware that this process may use.

    Attributes:
        cpu: The CPU, with the cores that this process may use.
        memory_bytes: The main memory that the box may use.
        accelerators: GPUs and NPUs.
        tegra: NVIDIA's system on a chip, on boards that have one.
        cuda_runtimes: The runtimes for NVIDIA's GPUs here, the first to serve first.
        notes: What could not be found out, and why.
    """

    cpu: Cpu
    memory_bytes: int
    accelerators: tuple[Accelerator, ...]
    tegra: Tegra | None
    cuda_runtimes: tuple[CudaRuntime, ...]
    notes: tuple[str, ...]


def cuda_runtimes() -> tuple[CudaRuntime, ...]:
    """The installed runtimes for NVIDIA's GPUs, the first to serve first."""
    return tuple(name for name in _CUDA_RUNTIMES if RUNTIMES[name]().missing() is None)


def probe(
    root: Path = Path("/"),
    *,
    openvino: Callable[[], Found] = openvino_devices,
    nvidia: Callable[[], Found] = nvidia_gpus,
    cuda: Callable[[], tuple[CudaRuntime, ...]] = cuda_runtimes,
) -> Hardware:
    """Probe this box's hardware.

    The file formats are described in proc(5), the kernel's cputopology.rst and cgroup-v2.rst,
    the Devicetree Specification 0.4 (section 2.3: `model` and `compatible` are NUL-terminated
    strings) with the kernel's bindings/arm/tegra.yaml, and NVIDIA's Jetson Linux Developer Guide
    (`/etc/nv_tegra_release`).

    Args:
        root: The root of the file system to read.
        openvino: Lists the accelerators that OpenVINO can use.
        nvidia: Lists the GPUs that NVIDIA's driver reports.
        cuda: Lists the runtimes for those GPUs.
    """
    tegra = probe_tegra(root)
    intel, found = openvino(), nvidia()
    gpus = found.accelerators
    if tegra is not None and not gpus and is_shown("0"):
        gpus = (_tegra_gpu(tegra),)
    runtimes = cuda()
    if runtimes:
        gpus = _numbered(gpus, intel.accelerators)
    return Hardware(
        cpu=probe_cpu(root),
        memory_bytes=total_bytes(root),
        accelerators=(*intel.accelerators, *gpus),
        tegra=tegra,
        cuda_runtimes=runtimes,
        notes=(*intel.notes, *found.notes),
    )


def _numbered(
    gpus: tuple[Accelerator, ...], before: tuple[Accelerator, ...]
) -> tuple[Accelerator, ...]:
    """Give NVIDIA's GPUs the device ids after those of other makers."""
    first = sum(found.kind == "gpu" for found in before)
    return tuple(
        replace(found, device_id=f"gpu:{number}") for number, found in enumerate(gpus, first)
    )


def probe_tegra(root: Path) -> Tegra | None:
    """Read NVIDIA's system on a chip from the device tree; None where there is none."""
    tree = root / "proc/device-tree"
    try:
        compatible = (tree / "compatible").read_bytes().decode("ascii").split("\0")
        board = (tree / "model").read_bytes().decode("ascii").rstrip("\0")
    except FileNotFoundError:
        return None
    chips = [name for name in compatible if name.startswith("nvidia,tegra")]
    if not chips:
        return None
    return Tegra(board=board, chip=chips[0].removeprefix("nvidia,"), l4t=_l4t_release(root))


def _l4t_release(root: Path) -> str | None:
    try:
        first = (root / "etc/nv_tegra_release").read_text("utf-8").splitlines()[0]
    except (FileNotFoundError, IndexError):
        return None
    # "# R36 (release), REVISION: 4.3, GCID: ..., BOARD: generic, EABI: aarch64, DATE: ..."
    major, _, rest = first.removeprefix("# R").partition(" ")
    revision = rest.partition("REVISION: ")[2].partition(",")[0]
    return f"{major}.{revision}"


def _tegra_gpu(tegra: Tegra) -> Accelerator:
    return Accelerator(
        kind="gpu",
        vendor="nvidia",
        name=f"{tegra.chip} integrated GPU",
        compute_capability=_COMPUTE_CAPABILITY.get(tegra.chip),
    )


def scheduler_cores(hardware: Hardware) -> tuple[int, ...]:
    """The CPU cores reserved for the scheduler: all threads of the first physical core.

    The scheduler's latency is part of every request's latency, on every device. With its own core,
    an inference on the CPU cannot delay work for all other devices. A box whose only physical core
    has two threads reserves one of them; a box with a single thread reserves nothing.
    """
    groups = hardware.cpu.cores
    if len(groups) > 1:
        return groups[0]
    return groups[0][:1] if len(groups[0]) > 1 else ()


def default_devices(hardware: Hardware) -> tuple[DeviceConfig, ...]:
    """The devices of a box whose configuration names none.

    These are one `cpu:0` on all cores but the scheduler's (see `scheduler_cores`), and the GPUs and
    NPUs that an installed runtime can use.
    """
    reserved = scheduler_cores(hardware)
    cores = tuple(core for core in hardware.cpu.usable if core not in reserved)
    accelerators = tuple(
        _device(found, hardware) for found in hardware.accelerators if found.device_id is not None
    )
    return (DeviceConfig(id="cpu:0", cores=cores), *accelerators)


def _device(found: Accelerator, hardware: Hardware) -> DeviceConfig:
    if found.vendor == "intel":
        return DeviceConfig(id=found.device_id or "", runtimes=("openvino",))
    # By UUID, because its number here also counts other makers' GPUs. A Tegra has only one GPU.
    return DeviceConfig(
        id=found.device_id or "",
        runtimes=hardware.cuda_runtimes,
        options={"cuda": found.uuid or 0},
    )


def describe(hardware: Hardware) -> list[str]:
    """Describe the hardware in lines for people."""
    cpu = hardware.cpu
    quota = f", limited to the CPU time of {cpu.quota_cores:g}" if cpu.quota_cores else ""
    lines = [
        f"CPU     {cpu.model} ({cpu.architecture})",
        f"        {_count(len(cpu.cores), 'core')}, {_count(len(cpu.usable), 'thread')} usable: "
        f"{_ranges(cpu.usable)}{quota}",
        f"        {' '.join(cpu.isa) or 'no relevant instruction set extension'}",
        f"Memory  {_gib(hardware.memory_bytes)}",
    ]
    if hardware.tegra is not None:
        release = hardware.tegra.l4t or "unknown"
        lines.append(f"Board   {hardware.tegra.board} ({hardware.tegra.chip}, L4T {release})")
    lines += [_describe_accelerator(found) for found in hardware.accelerators]
    lines += [f"Note    {note}" for note in hardware.notes]
    return lines


def _describe_accelerator(found: Accelerator) -> str:
    facts = []
    if found.memory_bytes is not None:
        facts.append(_gib(found.memory_bytes))
    if found.compute_capability is not None:
        facts.append(f"compute capability {found.compute_capability}")
    if found.driver is not None:
        facts.append(f"driver {found.driver}")
    facts.append(found.device_id or "not used: its runtime comes with the extra laxity[gpu]")
    return f"{found.kind.upper()}     {found.name}: {', '.join(facts)}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _ranges(cores: Sequence[int]) -> str:
    """Core numbers as the kernel writes them: `0-3,8`."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)

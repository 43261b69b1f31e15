"""A device's load, memory and power, from cheap files and libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from workers.runtimes.base import DeviceSpec
from workers.telemetry.cpu import CpuProbe
from workers.telemetry.intel import IntelGpuProbe, IntelNpuProbe
from workers.telemetry.nvidia import NvmlProbe, nvml_probe
from workers.telemetry.reading import Reading
from workers.telemetry.tegra import TegraGpuProbe, is_tegra

__all__ = ["NvmlProbe", "Probe", "Reading", "probe_for"]


class Probe(Protocol):
    """Reads one device."""

    def read(self) -> Reading:
        """The current values; rates are over the time since the previous call."""
        ...


def probe_for(device: DeviceSpec, root: Path) -> Probe:
    """The probe of a device.

    Args:
        device: The device.
        root: Where `/proc` and `/sys` are found.
    """
    if device.kind == "npu":
        return IntelNpuProbe(root)
    if device.kind == "cpu" or "emulated" in device.runtimes:
        return CpuProbe(device.cores, root)
    if is_tegra(root):
        nvml = nvml_probe(device)
        return TegraGpuProbe(root, nvml=Reading if nvml is None else nvml.read)
    if device.runtimes == ("openvino",):
        return IntelGpuProbe(root)
    return nvml_probe(device) or IntelGpuProbe(root)

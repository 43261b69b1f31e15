"""NVIDIA's Jetson boards: their GPU, thermal zones, power rails and power models.

The files are those of NVIDIA's Jetson Linux Developer Guide 36, "Jetson Orin Nano Series, Jetson
Orin NX Series and Jetson AGX Orin Series" (power rails, power models, over-current events), and of
the kernel's hwmon/ina3221.rst and thermal/sysfs-api.rst. The rails differ between boards: Orin Nano
and NX have VDD_IN for the whole module, AGX Orin has no such rail. NVML has the load of a Thor's
GPU, which no file has, and not that of an Orin's (rbonghi/jetson_stats pull requests 886 and 889).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workers.kernel_files import number_of, text_of
from workers.telemetry.reading import (
    ClockNs,
    Reading,
    cooled_by_slowing,
    hottest,
)

_LOADS = (
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/bus@0/17000000.gpu/load",
    "sys/devices/platform/17000000.gpu/load",
    "sys/devices/gpu.0/load",
)
_CLOCKS = ".gpu", ".ga10b", ".gv11b", "gpu-gpc-0"
"""How the names of the GPUs' devfreq devices end; the last is a Thor's."""

_WHOLE_BOARD = "VDD_IN"


def is_tegra(root: Path) -> bool:
    """Whether the device tree names one of NVIDIA's systems on a chip."""
    return "nvidia,tegra" in (text_of(root / "proc/device-tree/compatible") or "")


def nvp_model(root: Path) -> str | None:
    """The power model that nvpmodel has set, such as `pmode:0002`; None elsewhere."""
    return text_of(root / "var/lib/nvpmodel/status")


def rails(root: Path) -> Iterator[tuple[str, float]]:
    """The rails of the INA3221 sensors: their names and watts.

    By hwmon/ina3221.rst, millivolts are in `in<n>_input` and milliamperes in `curr<n>_input`. The
    channel with the sum of the shunts is not a rail.
    """
    for sensor in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if text_of(sensor / "name") != "ina3221":
            continue
        for channel in (1, 2, 3):
            label = text_of(sensor / f"in{channel}_label")
            millivolts = number_of(sensor / f"in{channel}_input")
            milliamperes = number_of(sensor / f"curr{channel}_input")
            if label and label != "NC" and millivolts is not None and milliamperes is not None:
                yield label, millivolts * milliamperes / 1e6


def board_watts(root: Path) -> float | None:
    """The power of a Jetson's module, in watts: its input rail, or the sum of its rails."""
    found = dict(rails(root))
    if _WHOLE_BOARD in found:
        return found[_WHOLE_BOARD]
    return sum(found.values()) if found else None


def over_current_events(root: Path) -> int | None:
    """How often the module was throttled for over-current since it was switched on.

    The count is only shown to people. Single events are common under load, and do not make profiles
    stale.
    """
    counts = [
        count
        for sensor in (root / "sys/class/hwmon").glob("hwmon*")
        if text_of(sensor / "name") == "soctherm_oc"
        for path in sensor.glob("oc*_event_cnt")
        if (count := number_of(path)) is not None
    ]
    return sum(counts) if counts else None


class WattMeter:
    """Integrates a power sensor's readings into an energy, between successive reads."""

    def __init__(self, root: Path, clock_ns: ClockNs) -> None:
        """Read a Jetson's rails below a root."""
        self._root = root
        self._clock_ns = clock_ns
        self._joules = 0.0
        self._read_ns: int | None = None

    def read(self) -> tuple[float | None, float | None]:
        """The current watts and the joules so far, or None for both."""
        watts = board_watts(self._root)
        if watts is None:
            return None, None
        now_ns = self._clock_ns()
        if self._read_ns is not None:
            self._joules += watts * (now_ns - self._read_ns) / 1e9
        self._read_ns = now_ns
        return watts, self._joules


class TegraGpuProbe:
    """Reads a Jetson's GPU, which shares the box's memory."""

    def __init__(
        self,
        root: Path,
        clock_ns: ClockNs = time.monotonic_ns,
        nvml: Callable[[], Reading] = Reading,
    ) -> None:
        """Read below a root, and ask `nvml` what no file there has."""
        self._root = root
        self._nvml = nvml
        self._meter = WattMeter(root, clock_ns)

    def read(self) -> Reading:
        """See `Probe.read`."""
        watts, joules = self._meter.read()
        return Reading(
            utilisation=self._load(),
            temperature_c=hottest(self._root, ("gpu", "tj-thermal")),
            clock_hz=self._clock_hz(),
            power_w=watts,
            energy_j=joules,
            power_mode=nvp_model(self._root) or "unknown",
            over_current_events=over_current_events(self._root),
            throttled=cooled_by_slowing(self._root, ("gpu", "devfreq")),
        )

    def _load(self) -> float | None:
        for name in _LOADS:
            per_mille = number_of(self._root / name)
            if per_mille is not None:
                return per_mille / 1000
        return self._nvml().utilisation

    def _clock_hz(self) -> int | None:
        for device in sorted((self._root / "sys/class/devfreq").glob("*")):
            if device.name.endswith(_CLOCKS):
                return number_of(device / "cur_freq")
        return None

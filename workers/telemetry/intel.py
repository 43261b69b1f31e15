"""Intel's GPUs and NPUs, through the files of the kernel's drivers i915, xe and intel_vpu.

The files are described in Documentation/ABI: testing/sysfs-driver-intel-i915-hwmon and
sysfs-driver-intel-xe-hwmon (energy in microjoules). Others are the drivers' own: clocks, idle
residency and throttle reasons, of i915 under `gt/gt0` and of xe under `device/tile0/gt0` (as in
intel/compute-runtime, sysman), and those of the NPU (`npu_busy_time_us`,
`npu_current_frequency_mhz`).
"""

from __future__ import annotations

import time
from pathlib import Path

from workers.kernel_files import number_of, text_of
from workers.telemetry.reading import ClockNs, Rate, Reading, hottest

_INTEL = "0x8086"

_XE = "device/tile0/gt0"
_IDLE = "gt/gt0/rc6_residency_ms", f"{_XE}/gtidle/idle_residency_ms"
_CLOCK = "gt/gt0/rps_act_freq_mhz", f"{_XE}/freq0/act_freq"
_THROTTLING = "gt/gt0/throttle_reason_", f"{_XE}/freq0/throttle/reason_"
_IS_THROTTLED = "gt/gt0/throttle_reason_status", f"{_XE}/freq0/throttle/status"


class IntelGpuProbe:
    """Reads the first Intel GPU."""

    def __init__(self, root: Path, clock_ns: ClockNs = time.monotonic_ns) -> None:
        """Find the card below a root."""
        self._root = root
        cards = sorted((root / "sys/class/drm").glob("card[0-9]"))
        self._card = next((c for c in cards if text_of(c / "device/vendor") == _INTEL), None)
        self._idle = Rate(clock_ns)
        self._watts = Rate(clock_ns)

    def read(self) -> Reading:
        """See `Probe.read`."""
        if self._card is None:
            return Reading()
        idle_ms = self._idle.of(_first_of(self._card, _IDLE))
        megahertz = _first_of(self._card, _CLOCK)
        energy_j = self._energy_j()
        return Reading(
            # Deep sleep (rc6) is the only idle time that can be read without root.
            utilisation=None if idle_ms is None else min(1.0, max(0.0, 1 - idle_ms / 1000)),
            temperature_c=hottest(self._root, ("gpu",)),
            clock_hz=None if megahertz is None else megahertz * 10**6,
            power_w=self._watts.of(energy_j),
            energy_j=energy_j,
            throttled=_throttled(self._card),
        )

    def _energy_j(self) -> float | None:
        if self._card is None:
            return None
        for sensor in sorted((self._card / "device/hwmon").glob("hwmon*")):
            microjoules = number_of(sensor / "energy1_input")
            if microjoules is not None:
                return microjoules / 1e6
        return None


class IntelNpuProbe:
    """Reads the first NPU."""

    def __init__(self, root: Path, clock_ns: ClockNs = time.monotonic_ns) -> None:
        """Find the NPU below a root."""
        self._device = next(iter(sorted((root / "sys/class/accel").glob("accel*/device"))), None)
        self._busy = Rate(clock_ns)

    def read(self) -> Reading:
        """See `Probe.read`."""
        if self._device is None:
            return Reading()
        busy_us = self._busy.of(number_of(self._device / "npu_busy_time_us"))
        megahertz = number_of(self._device / "npu_current_frequency_mhz")
        return Reading(
            utilisation=None if busy_us is None else min(1.0, busy_us / 1e6),
            memory_used_bytes=number_of(self._device / "npu_memory_utilization"),
            clock_hz=None if megahertz is None else megahertz * 10**6,
        )


def _first_of(card: Path, names: tuple[str, ...]) -> int | None:
    """The number in the first of these files that there is."""
    known = (number_of(card / name) for name in names)
    return next((value for value in known if value is not None), None)


def _throttled(card: Path) -> tuple[str, ...]:
    if not _first_of(card, _IS_THROTTLED):
        return ()
    reasons = [
        path.name.rpartition("reason_")[2]
        for start in _THROTTLING
        for path in sorted(card.glob(f"{start}*"))
        if not path.name.endswith("_status") and number_of(path)
    ]
    return tuple(f"thermal: {r}" if "therm" in r or r == "prochot" else r for r in reasons)

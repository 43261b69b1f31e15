"""Intel's GPUs and NPUs, through the files of the kernel's drivers i915, xe and intel_vpu.

The files are described in Documentation/ABI: testing/sysfs-driver-intel-i915-hwmon (energy in
microjoules). Others are the drivers' own under `gt/gt0` (i915: clocks, rc6 residency, throttle
reasons) and those of the NPU (`npu_busy_time_us`, `npu_current_frequency_mhz`).
"""

from __future__ import annotations

import time
from pathlib import Path

from workers.kernel_files import number_of, text_of
from workers.telemetry.reading import ClockNs, Rate, Reading, hottest

_INTEL = "0x8086"


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
        unit = self._card / "gt/gt0"
        idle_ms = self._idle.of(number_of(unit / "rc6_residency_ms"))
        megahertz = number_of(unit / "rps_act_freq_mhz")
        energy_j = self._energy_j()
        return Reading(
            # Deep sleep (rc6) is the only idle time that can be read without root.
            utilisation=None if idle_ms is None else min(1.0, max(0.0, 1 - idle_ms / 1000)),
            temperature_c=hottest(self._root, ("gpu",)),
            clock_hz=None if megahertz is None else megahertz * 10**6,
            power_w=self._watts.of(energy_j),
            energy_j=energy_j,
            throttled=self._throttled(unit),
        )

    def _energy_j(self) -> float | None:
        if self._card is None:
            return None
        for sensor in sorted((self._card / "device/hwmon").glob("hwmon*")):
            microjoules = number_of(sensor / "energy1_input")
            if microjoules is not None:
                return microjoules / 1e6
        return None

    def _throttled(self, unit: Path) -> tuple[str, ...]:
        if not number_of(unit / "throttle_reason_status"):
            return ()
        reasons = [
            path.name.removeprefix("throttle_reason_")
            for path in sorted(unit.glob("throttle_reason_*"))
            if path.name != "throttle_reason_status" and number_of(path)
        ]
        return tuple(f"thermal: {r}" if "therm" in r or r == "prochot" else r for r in reasons)


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

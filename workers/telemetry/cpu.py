"""The CPU: proc(5), cpufreq, thermal zones, Intel's RAPL, and a Jetson's power sensors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from workers.kernel_files import bytes_of, number_of, text_of
from workers.telemetry.reading import (
    ClockNs,
    Rate,
    Reading,
    cooled_by_slowing,
    hottest,
)
from workers.telemetry.tegra import WattMeter, nvp_model

_ZONES = ("cpu", "x86_pkg_temp", "soc", "tj-thermal")
_COOLERS = ("cpufreq", "cpu-", "processor")
_LEAST_NS = 100_000_000
"""Of less running and waiting together, a share would say little."""


class CpuProbe:
    """Reads the cores of a CPU device."""

    def __init__(
        self,
        cores: tuple[int, ...],
        root: Path,
        clock_ns: ClockNs = time.monotonic_ns,
    ) -> None:
        """Read the given cores, or all if none are given."""
        self._cores = cores
        self._root = root
        self._busy: tuple[int, int] | None = None
        self._watts = Rate(clock_ns)
        self._package = RaplMeter(root)
        self._board = WattMeter(root, clock_ns)
        self._wait = CoreWait(root)

    def read(self) -> Reading:
        """See `Probe.read`."""
        total, available = self._memory()
        watts, energy_j = self._power()
        return Reading(
            utilisation=self._utilisation(),
            memory_used_bytes=None if total is None or available is None else total - available,
            memory_total_bytes=total,
            temperature_c=hottest(self._root, _ZONES),
            clock_hz=self._clock_hz(),
            power_w=watts,
            energy_j=energy_j,
            power_mode=power_mode(self._root, self._cores),
            throttled=cooled_by_slowing(self._root, _COOLERS),
            core_wait=self._wait.share(),
        )

    def _utilisation(self) -> float | None:
        """The share of time in /proc/stat that was neither `idle` nor `iowait`."""
        wanted = {f"cpu{core}" for core in self._cores} or {"cpu"}
        busy = whole = 0
        for line in (text_of(self._root / "proc/stat") or "").splitlines():
            name, *fields = line.split()
            if name in wanted:
                ticks = [int(field) for field in fields[:8]]
                whole += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]
        before, self._busy = self._busy, (busy, whole)
        if before is None or whole <= before[1]:
            return None
        return min(1.0, max(0.0, (busy - before[0]) / (whole - before[1])))

    def _power(self) -> tuple[float | None, float | None]:
        """Watts and joules of the packages, or else of a Jetson's module."""
        joules = self._package.joules()
        return self._board.read() if joules is None else (self._watts.of(joules), joules)

    def _memory(self) -> tuple[int | None, int | None]:
        meminfo = self._root / "proc/meminfo"
        return bytes_of(meminfo, "MemTotal"), bytes_of(meminfo, "MemAvailable")

    def _clock_hz(self) -> int | None:
        folder = self._root / "sys/devices/system/cpu"
        cores = self._cores or (0,)
        khz = [number_of(folder / f"cpu{core}/cpufreq/scaling_cur_freq") for core in cores]
        known = [value for value in khz if value is not None]
        return 1000 * sum(known) // len(known) if known else None


class CoreWait:
    """How long the threads of this process wait for a core; see scheduler/sched-stats.rst."""

    def __init__(self, root: Path) -> None:
        """Start without a previous reading."""
        self._tasks = root / "proc/self/task"
        self._before: dict[str, tuple[int, int]] = {}

    def share(self) -> float | None:
        """The part of the time since the previous reading in which they waited instead of ran."""
        before, self._before = self._before, dict(self._read())
        kept = [(now, before[task]) for task, now in self._before.items() if task in before]
        ran_ns = sum(now[0] - then[0] for now, then in kept)
        waited_ns = sum(now[1] - then[1] for now, then in kept)
        whole_ns = ran_ns + waited_ns
        return waited_ns / whole_ns if whole_ns >= _LEAST_NS else None

    def _read(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for path in self._tasks.glob("*/schedstat"):
            fields = (text_of(path) or "").split()
            if len(fields) == 3:  # else the thread has ended, or the kernel counts nothing
                yield path.parent.name, (int(fields[0]), int(fields[1]))


class RaplMeter:
    """The energy counters of Intel's and AMD's CPU packages; see power/powercap/powercap.rst.

    Since kernel 5.10 only root may read them.
    """

    def __init__(self, root: Path) -> None:
        """Find the packages."""
        self._zones = [
            zone
            for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
            if (text_of(zone / "name") or "").startswith("package")
        ]
        self._last: dict[Path, int] = {}
        self._wrapped: dict[Path, int] = {}

    def joules(self) -> float | None:
        """The energy counters of all packages together, in joules, or None."""
        total = 0
        for zone in self._zones:
            microjoules = number_of(zone / "energy_uj")
            if microjoules is None:
                return None
            if microjoules < self._last.get(zone, 0):
                reach = number_of(zone / "max_energy_range_uj") or 0
                self._wrapped[zone] = self._wrapped.get(zone, 0) + reach
            self._last[zone] = microjoules
            total += microjoules + self._wrapped.get(zone, 0)
        return total / 1e6 if self._zones else None


def power_mode(root: Path, cores: tuple[int, ...]) -> str:
    """The cores' frequency governors and a Jetson's power model, or `unknown`."""
    cpus = root / "sys/devices/system/cpu"
    governors = {text_of(cpus / f"cpu{core}/cpufreq/scaling_governor") for core in cores or (0,)}
    return " ".join(sorted(filter(None, {*governors, nvp_model(root)}))) or "unknown"

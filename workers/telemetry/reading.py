"""The reading of a device, and helpers for probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workers.kernel_files import number_of, text_of

ClockNs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a device; None for values that the box does not report.

    Attributes:
        utilisation: The busy share of the time since the previous reading, 0 to 1.
        memory_used_bytes: Memory in use, of all processes.
        memory_total_bytes: Its total memory.
        temperature_c: The hottest sensor of the device, in degrees Celsius.
        clock_hz: Its clock rate; the mean of several cores.
        power_w: Its power draw; the box's where only that is metered.
        energy_j: The energy drawn since an arbitrary moment; only differences are meaningful.
        power_mode: The box's setting for trading speed against power.
        over_current_events: How often it was throttled for drawing too much current.
        throttled: Why it is throttled; empty if it is not.
        core_wait: For how much of the time in which the worker had something to do on the CPU it
            waited for a core, because others used them; 0 to 1.
    """

    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    clock_hz: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    power_mode: str | None = None
    over_current_events: int | None = None
    throttled: tuple[str, ...] = ()
    core_wait: float | None = None

    def known(self) -> dict[str, Any]:
        """The known values as plain types, floats rounded to thousandths."""
        found = asdict(self)
        found["throttled"] = list(self.throttled)
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }


class Rate:
    """Turns a rising counter into a rate per second."""

    def __init__(self, clock_ns: ClockNs) -> None:
        """Use a clock in nanoseconds."""
        self._clock_ns = clock_ns
        self._before: tuple[int, float] | None = None

    def of(self, value: float | None) -> float | None:
        """The rate per second since the previous call.

        None at the first call, for None, and if the counter fell, as after a reset.
        """
        if value is None:
            return None
        now_ns = self._clock_ns()
        before, self._before = self._before, (now_ns, value)
        if before is None or now_ns <= before[0]:
            return None
        rise = value - before[1]
        return rise / ((now_ns - before[0]) / 1e9) if rise >= 0 else None


def thermal_zones(root: Path) -> Iterator[tuple[str, float]]:
    """Names and Celsius temperatures of thermal zones; see the kernel's thermal/sysfs-api.rst."""
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        kind, millidegrees = text_of(zone / "type"), number_of(zone / "temp")
        if kind is not None and millidegrees is not None:
            yield kind, millidegrees / 1000


def hottest(root: Path, words: tuple[str, ...]) -> float | None:
    """The highest temperature of the zones whose name contains one of the words."""
    found = [
        celsius
        for name, celsius in thermal_zones(root)
        if any(word in name.lower() for word in words)
    ]
    return max(found, default=None)


def cooled_by_slowing(root: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel's cooling devices that are now lowering a processor's clock.

    By thermal/sysfs-api.rst a `cur_state` above 0 means that the device is active. Fans are cooling
    devices too, but slow nothing; `words` selects the others.
    """
    active = []
    for device in sorted((root / "sys/class/thermal").glob("cooling_device*")):
        kind, state = text_of(device / "type"), number_of(device / "cur_state")
        if kind and state and any(word in kind.lower() for word in words):
            active.append(f"thermal: {kind}")
    return tuple(active)

"""What is read of a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workers.kernel_files import number_of, text_of

ClockNs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a device; None where the box does not tell.

    Attributes:
        utilisation: The busy share of the time since the look before, 0 to 1.
        memory_used_bytes: Memory in use, of all processes.
        memory_total_bytes: All of its memory.
        temperature_c: The hottest sensor of the device, in degrees Celsius.
        clock_hz: Its clock; of several cores, the mean.
        power_w: What it draws; the box's, where only that is metered.
        energy_j: What it has drawn since some moment; only differences mean anything.
        power_mode: How the box is set to trade speed for power.
        over_current_events: How often it was held back for drawing too much.
        throttled: Why it runs slower than its clocks would allow; empty when it does not.
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

    def known(self) -> dict[str, Any]:
        """What is known, as plain values, to the thousandth."""
        found = asdict(self)
        found["throttled"] = list(self.throttled)
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }


class Rate:
    """Turns a rising counter into its rise per second."""

    def __init__(self, clock_ns: ClockNs = time.monotonic_ns, wraps_at: float | None = None):
        """Read a clock in nanoseconds; `wraps_at` is the value after which it is 0 again."""
        self._clock_ns = clock_ns
        self._wraps_at = wraps_at
        self._before: tuple[int, float] | None = None

    def of(self, value: float | None) -> float | None:
        """The rise per second since the call before; None at the first, or for a None."""
        if value is None:
            return None
        now_ns = self._clock_ns()
        before, self._before = self._before, (now_ns, value)
        if before is None or now_ns <= before[0]:
            return None
        rise = value - before[1]
        if rise < 0:
            if self._wraps_at is None:
                return None
            rise += self._wraps_at
        return rise / ((now_ns - before[0]) / 1e9)


def thermal_zones(root: Path) -> Iterator[tuple[str, float]]:
    """Names and temperatures in Celsius, as the kernel's thermal/sysfs-api.rst has them."""
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        kind, millidegrees = text_of(zone / "type"), number_of(zone / "temp")
        if kind is not None and millidegrees is not None:
            yield kind, millidegrees / 1000


def hottest(root: Path, words: tuple[str, ...]) -> float | None:
    """The highest temperature of the zones whose name holds one of some words."""
    found = [
        celsius
        for name, celsius in thermal_zones(root)
        if any(word in name.lower() for word in words)
    ]
    return max(found, default=None)


def cooled_by_slowing(root: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel's cooling devices that hold a processor's clock down now.

    From thermal/sysfs-api.rst: `cur_state` above 0 means that it is at work. Fans are cooling
    devices as well, and slow nothing.
    """
    active = []
    for device in sorted((root / "sys/class/thermal").glob("cooling_device*")):
        kind, state = text_of(device / "type"), number_of(device / "cur_state")
        if kind and state and any(word in kind.lower() for word in words):
            active.append(f"thermal: {kind}")
    return tuple(active)

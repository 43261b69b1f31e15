"""Watch a device's power mode and whether heat throttles it."""

from __future__ import annotations

from workers.fingerprint import DeviceState
from workers.telemetry import Probe, Reading

LOOK_EVERY_S = 5.0
"""A read takes at most a few milliseconds of CPU time."""

SETTLED_LOOKS = 2
"""Readings in a row that must agree: a moment of heat is not worth measuring again."""


class DeviceWatch:
    """Follows one device through its probe.

    Attributes:
        reading: The latest reading.
        state: The latest settled state.
    """

    def __init__(self, probe: Probe) -> None:
        """Take the first reading, whose state counts as settled."""
        self._probe = probe
        self._alike = 0
        self.reading = probe.read()
        self.state = self._latest = state_of(self.reading)

    def look(self) -> bool:
        """Read again, and return whether the settled state has changed."""
        self.reading = self._probe.read()
        found = state_of(self.reading)
        self._alike = self._alike + 1 if found == self._latest else 1
        self._latest = found
        if found == self.state or self._alike < SETTLED_LOOKS:
            return False
        self.state = found
        return True


def state_of(reading: Reading) -> DeviceState:
    """The part of a reading that a device's speed depends on.

    Of the reasons for throttling only heat counts, because it lasts for minutes. Power limits act
    within every burst of work and are part of what was measured.
    """
    heat = [reason for reason in reading.throttled if reason.startswith("thermal")]
    return DeviceState(reading.power_mode or "unknown", ", ".join(heat) or "no")

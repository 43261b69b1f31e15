"""Watches how a device is set and whether heat slows it down."""

from __future__ import annotations

from workers.fingerprint import DeviceState
from workers.telemetry import Probe, Reading

LOOK_EVERY_S = 5.0
"""A look takes less than a few milliseconds of CPU time."""

SETTLED_LOOKS = 2
"""So many looks in a row have to agree: a moment of heat is not worth measuring again."""


class DeviceWatch:
    """Follows one device through its probe.

    Attributes:
        reading: The latest look.
        state: How the device is set, settled.
    """

    def __init__(self, probe: Probe) -> None:
        """Take the first look, which counts at once."""
        self._probe = probe
        self._alike = 0
        self.reading = probe.read()
        self.state = self._latest = state_of(self.reading)

    def look(self) -> bool:
        """Look again; whether the state has changed, for good as far as can be told."""
        self.reading = self._probe.read()
        found = state_of(self.reading)
        self._alike = self._alike + 1 if found == self._latest else 1
        self._latest = found
        if found == self.state or self._alike < SETTLED_LOOKS:
            return False
        self.state = found
        return True


def state_of(reading: Reading) -> DeviceState:
    """What of a reading a device's speed depends on.

    Of the reasons to slow down only heat counts: it lasts for minutes, while power limits strike
    within every burst of work and are part of what was measured.
    """
    heat = [reason for reason in reading.throttled if reason.startswith("thermal")]
    return DeviceState(reading.power_mode or "unknown", ", ".join(heat) or "no")

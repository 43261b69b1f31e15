"""Doubts about what was measured: a device idles while requests that it could run are refused.

A profile that was taken while the machine was busy can promise more than any deadline allows. Then
nothing is ever sent to the device, and so nothing is learned from it. Or the deadlines are too
short indeed: nobody can tell without a run. So the device is asked to measure once more, with
inputs of its own; no caller's request is staked on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetState

IDLE_NS = 1_000_000_000
"""A device that has been without work for so long idles."""

FIRST_NS, MOST_NS = 10_000_000_000, 600_000_000_000
"""How long what was measured is believed: at first, and at most. Each time it is twice as long, so
that deadlines that no device could meet don't keep one busy."""

_LOOK_NS = 100_000_000
"""Refusals that are closer to each other than this are one: under overload there are thousands."""

_LIKELY = 0.95


@dataclass(frozen=True, slots=True)
class _Asked:
    at_ns: int
    wait_ns: int


class Doubts:
    """Says what is to be measured again, and when."""

    def __init__(self) -> None:
        """Believes everything."""
        self._asked: dict[tuple[str, str, str], _Asked] = {}
        self._next_ns = 0

    def refused(
        self, kind: RequestClass, devices: Iterable[TargetState], now_ns: int
    ) -> tuple[str, Offer] | None:
        """A request of a class was refused, because no target was expected to be in time.

        Args:
            kind: Its class.
            devices: The devices that can measure.
            now_ns: The time, on the clock of the scheduler.

        Returns:
            The device to ask, and for what: of those that are due the one that is thought to be
            the quickest. None if there is none.
        """
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + _LOOK_NS
        due = [
            (device.curve(offer).predict(1, _LIKELY), device.spec.id, offer)
            for device in devices
            if device.up and not device.runs and now_ns - device.last_done_ns >= IDLE_NS
            for offer in device.usable(kind)
            if self._is_due((device.spec.id, offer.model, offer.variant), now_ns)
        ]
        if not due:
            return None
        _, device_id, offer = min(due, key=lambda entry: entry[:2])
        self._note((device_id, offer.model, offer.variant), now_ns)
        self._next_ns = now_ns + IDLE_NS
        return device_id, offer

    def _is_due(self, key: tuple[str, str, str], now_ns: int) -> bool:
        asked = self._asked.get(key)
        return asked is None or now_ns >= asked.at_ns + asked.wait_ns

    def _note(self, key: tuple[str, str, str], now_ns: int) -> None:
        asked = self._asked.get(key)
        recent = asked is not None and now_ns < asked.at_ns + 2 * MOST_NS
        wait_ns = min(MOST_NS, 2 * asked.wait_ns) if asked and recent else FIRST_NS
        self._asked[key] = _Asked(now_ns, wait_ns)

"""When the scheduler is woken next: it polls nothing."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.commands import WakeAt
from scheduler.core.targets import TargetState


class Alarm:
    """Set to the next deadline, the next target to open, or what the policy asked for.

    Attributes:
        armed_ns: The time of the `Woken` that was last asked for and has not come.
    """

    def __init__(self) -> None:
        """Not set."""
        self.armed_ns: int | None = None
        self._wish_ns: int | None = None

    def forget_wishes(self) -> None:
        """The policy is asked anew, and what it wished before is void."""
        self._wish_ns = None

    def wish(self, at_ns: int) -> None:
        """The policy asks to be asked again at some time."""
        self._wish_ns = at_ns if self._wish_ns is None else min(at_ns, self._wish_ns)

    def rang(self) -> None:
        """What was asked for has come."""
        self.armed_ns = None

    def set(
        self, now_ns: int, expiry_ns: int | None, targets: Iterable[TargetState]
    ) -> WakeAt | None:
        """Asks for the next wake-up, unless one that is asked for comes in time.

        Args:
            now_ns: What time it is.
            expiry_ns: When the next deadline will have passed.
            targets: Those whose opening matters, because something waits.
        """
        wanted = self._wanted_ns(now_ns, expiry_ns, targets)
        armed = self.armed_ns
        if wanted is not None and (armed is None or wanted < armed or armed <= now_ns):
            self.armed_ns = wanted
            return WakeAt(wanted)
        if armed is not None and armed <= now_ns:
            self.armed_ns = None
        return None

    def _wanted_ns(
        self, now_ns: int, expiry_ns: int | None, targets: Iterable[TargetState]
    ) -> int | None:
        wanted = self._wish_ns
        if expiry_ns is not None and (wanted is None or expiry_ns < wanted):
            wanted = expiry_ns
        for target in targets:
            opens_ns = target.opens_ns()
            if opens_ns is None or opens_ns <= now_ns or not target.has_slot():
                continue
            if wanted is None or opens_ns < wanted:
                wanted = opens_ns
        return wanted

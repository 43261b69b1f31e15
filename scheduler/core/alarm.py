"""When the scheduler is woken next; it never polls."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.commands import WakeAt
from scheduler.core.targets import TargetState


class Alarm:
    """Rings at the next deadline, when the next target opens, or when the policy asked to be woken.

    Attributes:
        armed_ns: The time of the `Woken` that is still to come; None if none is.
    """

    def __init__(self) -> None:
        """Not set."""
        self.armed_ns: int | None = None
        self._wish_ns: int | None = None

    def forget_wishes(self) -> None:
        """Clears the policy's wishes, because it is being asked again."""
        self._wish_ns = None

    def wish(self, at_ns: int) -> None:
        """Records that the policy wants to be asked again at that time."""
        self._wish_ns = at_ns if self._wish_ns is None else min(at_ns, self._wish_ns)

    def rang(self) -> None:
        """Records that the awaited `Woken` has come."""
        self.armed_ns = None

    def set(
        self, now_ns: int, expiry_ns: int | None, targets: Iterable[TargetState]
    ) -> WakeAt | None:
        """Requests the next wake-up, unless one that comes early enough is already pending.

        Args:
            now_ns: The current time.
            expiry_ns: When the next deadline has passed; None if there is none.
            targets: The targets to watch for opening; none if nothing is queued.
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

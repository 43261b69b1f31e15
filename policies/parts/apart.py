"""Some of the targets as a fleet of their own, for policies that prefer them to the rest."""

from __future__ import annotations

from collections.abc import Callable

from policies.parts.foresight import Foresight
from policies.parts.outlook import Outlook
from policies.parts.pace import Pace
from policies.parts.remembering import make_room
from policies.parts.serving import LOOK_AGAIN_NS
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState


class Apart:
    """The preferred targets, and the requests that they would not finish in time.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
        preferred: Whether a target is preferred.

    Attributes:
        view: The preferred targets alone, with all queues.
        is_all: Whether there are no other targets.
    """

    view: View

    def __init__(self, quantile: float, preferred: Callable[[TargetState], bool]) -> None:
        """Starts before its first look."""
        self.is_all = True
        self.view = View({}, {})
        self._outlook = Outlook(quantile)
        self._foresight = Foresight(self._outlook)
        self._preferred = preferred
        self._targets: dict[str, TargetState] = {}
        self._paces: dict[RequestClass, Pace] = {}
        self._seen: tuple[View, int] | None = None

    def look(self, view: View) -> bool:
        """Updates its view; returns whether the given view is not the previous one."""
        is_new = self._seen is None or self._seen[0] is not view
        if is_new:
            self.view = View(view.queues, self._targets)
        if self._seen is None or is_new or self._seen[1] != view.fleet_epoch:
            self._seen = view, view.fleet_epoch
            self._targets.clear()
            self._targets.update((i, t) for i, t in view.targets.items() if self._preferred(t))
            self.is_all = len(self._targets) == len(view.targets)
            self.view.is_part = not self.is_all
        self.view.follow(view)
        return is_new

    def late(self) -> list[Request]:
        """The requests that the preferred targets would not finish in time without new arrivals.

        Don't modify the list.
        """
        self._outlook.look(self.view)
        return self._foresight.unplaced()

    def cramping(self) -> list[Request]:
        """The requests that keep the next batch of a preferred target small (`Plan.cramping`).

        `late` must have been called since something changed.
        """
        return self._foresight.cramping()

    def share_ns(self, kind: RequestClass) -> float:
        """The time per request that the preferred targets together need in full batches."""
        self._outlook.look(self.view)
        bids, pace = self._outlook.bids(kind), self._paces.get(kind)
        if pace is None or pace.bids is not bids or not pace.is_current():
            make_room(self._paces)
            pace = self._paces[kind] = Pace(bids)
        return pace.cost_ns

    def latest_ns(self, outlook: Outlook) -> int | None:
        """The next moment just before which the other targets could still take a waiting request.

        Args:
            outlook: What all targets could do.

        Returns:
            It is at least `LOOK_AGAIN_NS` ahead; None if there is no such request.
        """
        moments_ns = []
        for queue in self.view.queues.values():
            for target_id, one_ns in outlook.ones_ns(queue.kind):
                if target_id not in self._targets:
                    done_ns = outlook.starts_ns[target_id] + one_ns
                    soonest_ns = queue.soonest_from(done_ns + 2 * LOOK_AGAIN_NS)
                    if soonest_ns is not None:
                        spare_ns = soonest_ns - done_ns
                        moments_ns.append(self.view.now_ns + spare_ns - LOOK_AGAIN_NS)
        return min(moments_ns, default=None)

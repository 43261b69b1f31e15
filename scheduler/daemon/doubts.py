"""Doubts about what was measured: a target idles while requests that it could run are refused.

What was measured while a machine was busy, or a link slow, can be more than any deadline allows.
Then nothing is ever sent to that target, and so nothing is learned from it. Or the deadlines are
too short indeed: nobody can tell without a run. So it is measured once more, with inputs made for
that; no caller's request is staked on it.

A device that others' models keep busy never idles. There a model that is refused for what was
measured of it alone is measured by a few single items, which take little of the device's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.belief import FIRST_NS, MOST_NS, longer_ns
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetState
from scheduler.daemon.submission import Submission

IDLE_NS = 1_000_000_000
"""A target that has been without work for so long idles. Of one that runs many batches at once, as
a cloud does, each model idles by itself."""

_LOOK_NS = 100_000_000
"""Refusals that are closer to each other than this are one: under overload there are thousands."""

_LIKELY = 0.95

_SURELY = 0.99
"""What would be in time with this probability is not refused for what was measured."""

RUNS, SHARE = 2, 0.01
"""On a device that is busy so many single items are run to find that nothing has changed; they may
take at most this share of its time."""


@dataclass(frozen=True, slots=True)
class _Asked:
    at_ns: int
    wait_ns: int


class Doubts:
    """Says what is to be measured again, and when."""

    def __init__(self) -> None:
        """Believes everything."""
        self._asked: dict[tuple[str, str, str], _Asked] = {}
        self._disturbed_ns: dict[str, int] = {}
        self._next_ns = 0

    def refused(
        self, submission: Submission, targets: Iterable[TargetState], now_ns: int
    ) -> tuple[str, Offer] | None:
        """A request was refused, because no target was expected to be in time.

        Args:
            submission: The request.
            targets: All there are.
            now_ns: The time, on the clock of the scheduler.

        Returns:
            The target to measure, and what there: of those that are due the one that is thought
            to be the quickest, and one that idles rather than one that is busy. None if there is
            none.
        """
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + _LOOK_NS
        due = []
        for target in targets:
            for offer in target.usable(submission.kind):
                key = target.spec.id, offer.model, offer.variant
                if not self._is_due(key, now_ns) or not _may_be_why(target, offer, submission):
                    continue
                is_busy = not _is_unused(target, offer, submission.kind, now_ns)
                if not is_busy or self._may_disturb(target, offer, submission, now_ns):
                    likely_ns = target.curve(offer, submission.kind).alone_ns(_LIKELY)
                    due.append((is_busy, likely_ns, target.spec.id, offer))
        if not due:
            return None
        is_busy, _, target_id, offer = min(due, key=lambda entry: entry[:3])
        if is_busy:
            self._disturbed_ns[target_id] = now_ns
        self._note((target_id, offer.model, offer.variant), now_ns)
        self._next_ns = now_ns + IDLE_NS
        return target_id, offer

    def _may_disturb(
        self, target: TargetState, offer: Offer, submission: Submission, now_ns: int
    ) -> bool:
        """Whether a device that works may be: the offer alone is too slow, and it seldom was."""
        if target.spec.remote or target.spec.width > 1 or not target.up:
            return False
        curve = target.curve(offer, submission.kind)
        alone_ns = curve.alone_ns(_SURELY)
        since_ns = self._disturbed_ns.get(target.spec.id, target.told_ns)
        if not 0 < submission.budget_ns < alone_ns or SHARE * (now_ns - since_ns) < RUNS * alone_ns:
            return False
        # What it runs or has just run tells of itself.
        is_running = any(run.offer == offer for run in target.runs.values())
        return curve.stale_ns() is None and not is_running

    def _is_due(self, key: tuple[str, str, str], now_ns: int) -> bool:
        asked = self._asked.get(key)
        return asked is None or now_ns >= asked.at_ns + asked.wait_ns

    def _note(self, key: tuple[str, str, str], now_ns: int) -> None:
        asked = self._asked.get(key)
        recent = asked is not None and now_ns < asked.at_ns + 2 * MOST_NS
        wait_ns = longer_ns(asked.wait_ns) if asked and recent else FIRST_NS
        self._asked[key] = _Asked(now_ns, wait_ns)


def _is_unused(target: TargetState, offer: Offer, kind: RequestClass, now_ns: int) -> bool:
    """Whether nothing is learned of an offer by itself, and to measure it disturbs nobody."""
    if not target.is_open(now_ns):
        return False
    if target.spec.width > 1 and not target.spec.peer:
        others = all(run.offer != offer for run in target.runs.values())
        return others and target.curve(offer, kind).stale_ns() is None
    return not target.runs and now_ns - target.last_done_ns >= IDLE_NS


def _may_be_why(target: TargetState, offer: Offer, submission: Submission) -> bool:
    """Whether a request may have been refused for what was measured; to look costs money."""
    if not target.spec.is_paid or not submission.budget_ns:
        return True
    if 2 * target.spec.transfer_ns[0] >= submission.budget_ns:
        return False  # probes tell of the round trip, for nothing
    way_ns = target.spec.transfer(len(submission.body))
    return target.curve(offer, submission.kind).alone_ns(_SURELY) + way_ns > submission.budget_ns

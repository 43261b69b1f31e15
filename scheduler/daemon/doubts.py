"""Doubts about measurements: a target idles while requests that it could run are refused.

A latency measured while a machine was busy, or a link slow, can exceed every deadline. Then nothing
is ever sent to that target, so nothing new is learned about it. Or the deadlines really are too
short: only a run can tell. So the offer is measured again, with synthetic inputs; no caller's
request is put at risk.

A device that other models keep busy never idles. There, a model that is refused even for its
latency alone on the device is measured with a few single items, which take little device time.
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
"""A target is idle after this long without work. On one that runs many batches at once, such as a
cloud or another box, each model may also be idle by itself."""

_CALM = 10
"""A device is idle after this many times the latency of the offer to measure, if that is longer, so
that a slow model is seldom measured just when a request comes, which would wait for it."""

_LOOK_NS = 100_000_000
"""Refusals closer together than this count as one: under overload there are thousands."""

_LIKELY = 0.95

_SURELY = 0.99
"""A run expected in time with this probability was not refused because of its measurement."""

RUNS, SHARE = 2, 0.01
"""On a busy device, a measurement that finds nothing changed runs this many single items; such
measurements may take at most this share of its time."""


@dataclass(frozen=True, slots=True)
class _Asked:
    at_ns: int
    wait_ns: int


class Doubts:
    """Decides what to measure again, and when."""

    def __init__(self) -> None:
        """Nothing is in doubt yet."""
        self._asked: dict[tuple[str, str, str], _Asked] = {}
        self._disturbed_ns: dict[str, int] = {}
        self._next_ns = 0

    def refused(
        self, submission: Submission, targets: Iterable[TargetState], now_ns: int
    ) -> tuple[str, Offer] | None:
        """Chooses a measurement after a refusal because no target was expected to be in time.

        Args:
            submission: The refused request.
            targets: All targets.
            now_ns: The time on the scheduler's clock.

        Returns:
            The target and the offer to measure: the fastest by prediction among those due, idle
            targets before busy ones. None if none is due.
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

    def forget(self, target_id: str) -> None:
        """Forgets a target that is removed."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] != target_id}
        self._disturbed_ns.pop(target_id, None)

    def _may_disturb(
        self, target: TargetState, offer: Offer, submission: Submission, now_ns: int
    ) -> bool:
        """Whether to measure on a busy device: the offer alone is too slow, and it was rare."""
        if target.spec.remote or target.spec.width > 1 or not target.up:
            return False
        curve = target.curve(offer, submission.kind)
        alone_ns = curve.alone_ns(_SURELY)
        since_ns = self._disturbed_ns.get(target.spec.id, target.told_ns)
        if not 0 < submission.budget_ns < alone_ns or SHARE * (now_ns - since_ns) < RUNS * alone_ns:
            return False
        # An offer that is running or has just run is measured by that run.
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
    """Whether no run teaches anything about an offer, and measuring it disturbs nobody."""
    if not target.is_open(now_ns):
        return False
    if target.spec.width > 1:
        others = all(run.offer != offer for run in target.runs.values())
        is_unused = others and target.curve(offer, kind).stale_ns() is None
        if is_unused or not target.spec.peer:
            return is_unused
    calm_ns = 0 if target.spec.remote else _CALM * target.curve(offer, kind).alone_ns(_LIKELY)
    return not target.runs and now_ns - target.last_done_ns >= max(IDLE_NS, calm_ns)


def _may_be_why(target: TargetState, offer: Offer, submission: Submission) -> bool:
    """Whether the measurement may be why a request was refused; a paid probe needs a reason."""
    if not target.spec.is_paid or not submission.budget_ns:
        return True
    if 2 * target.spec.transfer_ns[0] >= submission.budget_ns:
        return False  # the round trip is already too long, and probing it is free
    way_ns = target.spec.transfer(len(submission.body))
    return target.curve(offer, submission.kind).alone_ns(_SURELY) + way_ns > submission.budget_ns

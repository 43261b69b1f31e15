"""What a batch costs future arrivals: which ones it would make late while it runs.

A request that arrives while a device is busy is lost only if no other target can start it. So the
loss behind a batch (`parts.coming`) counts only until the batch ends or another target becomes
free, whichever is sooner: the last free device is worth more than one of three. Targets that are
too slow or too far away for all of a group don't count. A target that runs several batches at once
may be free beside this one, once its inputs have left the link. The queued requests go first, so
the longer the queues, the later another target becomes free:

    the time until its batch ends  *  STRETCH  +  the time that all targets need for the queues  *
    (BACKLOG + SHORT * the share of requests that are missed)  *  the part of expected losses that
    came about (`parts.hindsight`)

Of each queue no more counts than all targets take at once: a long queue of requests that can wait
is no reason to let them wait for ever.

The more other targets, the likelier one of them is free before that. So with more than `COUNTED`
targets a loss is multiplied by the cube root of `COUNTED` over their number.

These numbers stand for what the other targets will have started by then. They were tuned by
simulating a fleet of three devices at loads from 0.8 to 2.0, and random ones of five to sixteen
(docs/policies-compared.md).

A target loses no more than it could earn meanwhile: that time at the rate of the group that pays
best there, in the largest batches for which its most patient requests have time. Far beyond the
capacity much more arrives than that.

Source: the rule is one step of policy improvement: the cost of a decision is the expected loss
after it, by a simple model. R. A. Howard, "Dynamic Programming and Markov Processes", MIT Press,
1960.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from policies.parts.admission import Admission
from policies.parts.coming import Alike, Coming
from policies.parts.hindsight import Hindsight
from policies.parts.outlook import Bid, Outlook
from policies.parts.pace import Pace
from policies.parts.scarcity import Scarcity
from policies.parts.serving import Candidate

STRETCH = 2.0
"""The factor on the time until another target's batch ends."""

BACKLOG, SHORT = 0.25, 2.0
"""How much longer another target is assumed to be busy, as a share of the time that all targets
need for the queued requests: always `BACKLOG`, plus `SHORT` times the share of missed requests."""

COUNTED = 3
"""With up to so many targets, a loss behind a batch on one of them counts in full."""


class _Late(NamedTuple):
    """A group of arrivals, and one target.

    Attributes:
        alike: The group.
        own_ns: How much longer the target takes for one than the fastest does.
        beside_ns: How soon it could have done one beside the batch, if that needs no time on the
            link, less what the fastest takes; infinite if not before the batch is done.
        until_ns: How soon another target could have done one, less what the fastest takes.
        anyway: What is lost even without a batch ahead.
        part: In what proportion a loss counts, since there are other targets.
        quiet_ns: How long until the next of them is expected.
        per_ns: What the target could earn with them per nanosecond.
    """

    alike: Alike
    own_ns: int
    beside_ns: float
    until_ns: float
    anyway: float
    part: float
    quiet_ns: int
    per_ns: float


class Meanwhile:
    """Estimates what batches would make late.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class.
        coming: The recent arrivals.
        scarcity: Knows the share of missed requests.
        hindsight: Knows how much of such losses came about.
    """

    def __init__(
        self,
        outlook: Outlook,
        admission: Admission,
        coming: Coming,
        scarcity: Scarcity,
        hindsight: Hindsight,
    ) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming
        self._scarcity = scarcity
        self._hindsight = hindsight

    def lost(self, found: Sequence[Candidate]) -> list[float]:
        """The loss from each batch among arrivals at least as important, in units of its weight.

        Args:
            found: The batches that could go next on one target; at least one.
        """
        return self._lost(found, inf)

    def lost_to_cheaper(self, batch: Candidate) -> float:
        """The part of the loss behind a batch that is saved if it waits.

        That is the loss of arrivals that cost less per weight than its requests, or are more
        important. Behind any others, once they are served instead, as much is lost.

        Args:
            batch: One of the batches that could go next on a target.
        """
        pace = self._admission.pace(batch.queue.kind)
        step = min([pace.step(request.weight) for request in batch.batch])
        return self._lost([batch], step)[0]

    def _lost(self, found: Sequence[Candidate], step: float) -> list[float]:
        """Like `lost`; of arrivals as important as a batch, those below a step of the cost."""
        coming = self._coming
        if max([each.latency_ns for each in found]) <= coming.least_slack_ns:
            return [0.0] * len(found)
        self._admission.look()
        target_id = found[0].bid.target_id
        paces = [(each, self._admission.pace(each.kind)) for each in coming.groups]
        backlog = (BACKLOG + SHORT * self._scarcity.share) * self._hindsight.ratio()
        groups = [
            self._late(alike, pace, target_id, backlog)
            for alike, pace in paces
            if target_id in pace.target_ids
        ]
        since_ns = coming.since_ns()
        per_ns = max([each.per_ns for each in groups], default=0.0)
        losses = []
        for candidate in found:
            lost = 0.0
            link_ns = STRETCH * len(candidate.batch) * candidate.bid.item_ns
            for alike, own_ns, beside_ns, until_ns, anyway, part, quiet_ns, _ in groups:
                if (alike.priority, alike.step) < (candidate.priority, step):
                    end_ns = min(candidate.latency_ns + own_ns, beside_ns + link_ns, until_ns)
                    end_ns -= quiet_ns
                    if end_ns > own_ns:
                        lost += part * (alike.lost(end_ns) - anyway)
            lost = min(lost / since_ns, per_ns * candidate.lane_ns)
            losses.append(lost / coming.odds(candidate.bid))
        return losses

    def _late(self, alike: Alike, pace: Pace, target_id: str, backlog: float) -> _Late:
        now_ns = self._outlook.view.now_ns
        ahead_ns = backlog * self._admission.backlog_ns(pace) - pace.least_ns
        own_ns, beside_ns, until_ns, per_ns = 0, inf, inf, 0.0
        most_ns, _ = alike.patient()
        for bid, one_ns in zip(pace.bids, pace.ones_ns, strict=True):
            free_ns = self._outlook.free_ns(bid) - now_ns
            if bid.target_id == target_id:
                own_ns = one_ns - pace.least_ns
                per_ns = _earned(alike, bid, pace.least_ns)
                lane_ns = bid.target.beside_ns(now_ns)
                if lane_ns is not None:
                    free_ns = max(free_ns, lane_ns - now_ns)
                    beside_ns = STRETCH * free_ns + ahead_ns + one_ns
            elif one_ns - pace.least_ns <= most_ns:  # else too slow or too far for all of them
                until_ns = min(until_ns, STRETCH * free_ns + ahead_ns + one_ns)
        anyway, quiet_ns = alike.lost(own_ns), alike.quiet_ns(now_ns)
        part = (COUNTED / max(COUNTED, len(pace.bids))) ** (1 / 3)
        return _Late(alike, own_ns, beside_ns, until_ns, anyway, part, quiet_ns, per_ns)


def _earned(alike: Alike, bid: Bid, least_ns: int) -> float:
    """What a target could earn with a group per nanosecond, in batches that could be in time."""
    slack_ns, worth = alike.patient()
    rate = 0.0
    for _, ladder in bid.ladders():
        at = bisect_right(ladder.latency_ns, slack_ns + least_ns - bid.way_ns()) - 1
        rate = max(rate, bid.rate(ladder, max(0, at)))
    return worth * rate

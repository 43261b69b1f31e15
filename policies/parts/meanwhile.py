"""What a batch costs future arrivals: which ones it would make late while it runs.

A request that arrives while a device is busy is lost only if no other target can start it. So the
loss behind a batch (`parts.coming`) counts only until the batch ends or another target becomes
free, whichever is sooner: the last free device is worth more than one of three. The queued requests
go first, so the longer the queues, the later another target becomes free:

    the time until its batch ends  *  STRETCH  +  the time that all targets need for the queues  *
    (BACKLOG + SHORT * the share of requests that are missed)

If the loss exceeds the worth of every batch that could go now, it is better to wait: for a fuller
batch, for urgent requests, or for another target. If two of the largest batches or more are queued,
capacity is short and waiting gains nothing. Then the loss must exceed the worth by `FAR_MORE` times
the batch's weight. Nothing waits if there are costly targets or other boxes.

The three numbers stand for what the other targets will have started by then. They were tuned by
simulating a fleet of three devices at loads from 0.8 to 2.0 (docs/policies-compared.md).

Source: the rule is one step of policy improvement: the cost of a decision is the expected loss
after it, by a simple model. R. A. Howard, "Dynamic Programming and Markov Processes", MIT Press,
1960.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from policies.parts.admission import Admission
from policies.parts.coming import Alike, Coming
from policies.parts.outlook import Outlook
from policies.parts.pace import Pace
from policies.parts.scarcity import Scarcity
from policies.parts.serving import Candidate

STRETCH = 2.0
"""The factor on the time until another target's batch ends."""

BACKLOG, SHORT = 0.25, 2.0
"""How much longer another target is assumed to be busy, as a share of the time that all targets
need for the queued requests: always `BACKLOG`, plus `SHORT` times the share of missed requests."""

FAR_MORE = 2.0
"""A batch whose net loss is this many times its own weight waits, however long the queue is."""

_FAR_NS = float(1 << 62)


class _Late(NamedTuple):
    """A group of arrivals, and one target.

    Attributes:
        alike: The group.
        own_ns: How much longer the target takes for one than the fastest does.
        until_ns: How soon another target could have done one, less what the fastest takes.
        anyway: What is lost even without a batch ahead.
        quiet_ns: How long until the next of them is expected.
    """

    alike: Alike
    own_ns: int
    until_ns: float
    anyway: float
    quiet_ns: int


class Meanwhile:
    """Estimates what batches would make late.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class.
        coming: The recent arrivals.
        scarcity: Knows the share of missed requests.
    """

    def __init__(
        self, outlook: Outlook, admission: Admission, coming: Coming, scarcity: Scarcity
    ) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming
        self._scarcity = scarcity

    def lost(self, found: Sequence[Candidate]) -> list[float]:
        """The loss from each batch among arrivals at least as important, in units of its weight.

        Args:
            found: The batches that could go next on one target; at least one.
        """
        coming = self._coming
        if max([each.latency_ns for each in found]) <= coming.least_slack_ns:
            return [0.0] * len(found)
        self._admission.look()
        target_id = found[0].bid.target_id
        paces = [(each, self._admission.pace(each.kind)) for each in coming.groups]
        groups = [self._late(*each, target_id) for each in paces if target_id in each[1].target_ids]
        since_ns = coming.since_ns()
        losses = []
        for candidate in found:
            lost = 0.0
            for alike, own_ns, until_ns, anyway, quiet_ns in groups:
                if alike.priority <= candidate.priority:
                    end_ns = min(candidate.latency_ns + own_ns, until_ns) - quiet_ns
                    if end_ns > own_ns:
                        lost += alike.lost(end_ns) - anyway
            losses.append(lost / since_ns / coming.odds(candidate.bid))
        return losses

    def _late(self, alike: Alike, pace: Pace, target_id: str) -> _Late:
        starts_ns, now_ns = self._outlook.starts_ns, self._outlook.view.now_ns
        backlog = BACKLOG + SHORT * self._scarcity.share
        ahead_ns = backlog * self._admission.backlog_ns(pace) - pace.least_ns
        own_ns, until_ns = 0, _FAR_NS
        for at, one_ns in zip(pace.ids, pace.ones_ns, strict=True):
            if at == target_id:
                own_ns = one_ns - pace.least_ns
            else:
                done_ns = STRETCH * (starts_ns[at] - now_ns) + ahead_ns + one_ns
                until_ns = min(until_ns, done_ns)
        return _Late(alike, own_ns, until_ns, alike.lost(own_ns), alike.quiet_ns(now_ns))


def may_wait(best: Candidate, worth: float, found: Sequence[Candidate]) -> bool:
    """Whether a batch that loses more than it is worth now should wait.

    Args:
        best: The batch with the highest worth.
        worth: Its worth per nanosecond, less its loss; not above 0.
        found: All batches that could go.
    """
    if worth * best.latency_ns <= -FAR_MORE * fsum([request.weight for request in best.batch]):
        return True
    largest = max([len(each.batch) for each in found if each.queue is best.queue])
    return len(best.queue) < 2 * largest

"""What a batch would make late that comes while it runs, by when another target could have it.

What comes while a device is busy is lost only as long as no other could begin it. So behind a batch
of length s as much is late as behind one that ends when the first other target is free, where that
is sooner (`parts.coming`): the last device that is free is worth more than one of three. What waits
already is ahead of what comes then, so a target is free the later the more of it there is:

    the time until its batch ends  *  STRETCH  +  the time that all targets need for what waits  *
    (BACKLOG + SHORT * the share of requests that is missed)

Where that is more than any batch that could go is worth now, it is better to wait: for company,
for what is urgent, for another target. Where more waits than two of the largest batches would take
it is time that is missing, and who waits gains nothing: then it has to be more by `FAR_MORE` times
what the batch is worth at all. Where others can be paid for it, or are other boxes, nothing waits.

The three numbers stand for what the other targets will have begun by then. They were chosen by
playing a fleet of three devices at loads from 0.8 to 2.0 (docs/policies-compared.md).

Source: the rule is one step of policy improvement: what a decision costs is what is expected to be
lost after it, by a simple model of that. R. A. Howard, "Dynamic Programming and Markov Processes",
MIT Press, 1960.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.parts.admission import Admission
from policies.parts.coming import Alike, Coming
from policies.parts.outlook import Outlook
from policies.parts.pace import Pace
from policies.parts.scarcity import Scarcity
from policies.parts.serving import Candidate

STRETCH = 2.0
"""By this is the time multiplied until the batch of another target ends."""

BACKLOG, SHORT = 0.25, 2.0
"""So much of the time that all targets need for what waits is another target taken to be busy for
besides: always, and times the share of requests that is missed."""

FAR_MORE = 2.0
"""What loses others by so many times its own weight waits, however much waits with it."""

_FAR_NS = float(1 << 62)


class _Late(NamedTuple):
    """What comes of one kind, and one target.

    Attributes:
        alike: What came like it.
        own_ns: By how much longer the target takes than the fastest.
        until_ns: When another target could have done one, less what the fastest takes.
        anyway: What is lost of it behind nothing.
    """

    alike: Alike
    own_ns: int
    until_ns: float
    anyway: float


class Meanwhile:
    """Weighs batches against what they would make late.

    Args:
        outlook: What the targets could do.
        admission: Knows what each class costs.
        coming: What came lately.
        scarcity: How much is missed.
    """

    def __init__(
        self, outlook: Outlook, admission: Admission, coming: Coming, scarcity: Scarcity
    ) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming
        self._scarcity = scarcity

    def lost(self, found: Sequence[Candidate]) -> list[float]:
        """What each batch likely makes late of what is not less important, as weight of its own.

        Args:
            found: What could go next on one target; at least one.
        """
        coming = self._coming
        if max([each.latency_ns for each in found]) <= coming.least_slack_ns:
            return [0.0] * len(found)
        self._admission.look()
        target_id = found[0].bid.target_id
        paces = [(each, self._admission.pace(each.kind)) for each in coming.groups]
        groups = [self._late(*each, target_id) for each in paces if target_id in each[1].target_ids]
        since_ns, lull_ns = coming.since_ns(), coming.lull_ns()
        losses = []
        for candidate in found:
            lost = 0.0
            for alike, own_ns, until_ns, anyway in groups:
                if alike.priority <= candidate.priority:
                    end_ns = min(candidate.latency_ns + own_ns, until_ns) - lull_ns
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
        return _Late(alike, own_ns, until_ns, alike.lost(own_ns))


def may_wait(best: Candidate, worth: float, found: Sequence[Candidate]) -> bool:
    """Whether a batch that loses more than it is worth now is to wait.

    Args:
        best: The batch that is worth most.
        worth: What it is worth per nanosecond, less what it loses; not above 0.
        found: All that could go.
    """
    if worth * best.latency_ns <= -FAR_MORE * sum([request.weight for request in best.batch]):
        return True
    largest = max([len(each.batch) for each in found if each.queue is best.queue])
    return len(best.queue) < 2 * largest

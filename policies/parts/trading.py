"""Whether to buy a batch that a free target could do: if that saves more purchases than it costs.

A long batch makes requests that arrive while it runs on a free target late there, and those are
bought then. If they are expected to cost more than the batch would, it is bought in their place:
one request of 120 ms rather than two of 25. How many come and can't wait is judged by recent
arrivals (`parts.coming`), until the batch ends or another free target becomes free. What is not
bought waits behind the batch and makes others late, as in `parts.displacing`: the count is
multiplied by 1 + the share of the target's time that they need.

A lane of the costly target stays free for requests that would otherwise be late.
"""

from __future__ import annotations

from math import inf

from policies.parts.admission import Admission
from policies.parts.buying import batch_price, price, purchases
from policies.parts.coming import Alike, Coming
from policies.parts.meanwhile import STRETCH
from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import Candidate
from scheduler.core.policy import Place
from scheduler.core.targets import TargetState


class Trading:
    """Compares the price of a batch with that of the purchases it would cause.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class.
        coming: The recent arrivals.
    """

    def __init__(self, outlook: Outlook, admission: Admission, coming: Coming) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming

    def bought(self, batch: Candidate) -> Place | None:
        """The purchase of a batch that could go to a free target; None if that saves nothing."""
        if batch.latency_ns <= self._coming.least_slack_ns:
            return None
        saved = self._caused(batch) / len(batch.batch)
        if not saved:
            return None
        reason = "would make others late on free targets that cost more"
        for place in purchases(self._outlook, batch.batch, _has_lanes, reason):
            bids = self._outlook.bids(batch.queue.kind)
            bid = next(each for each in bids if each.target_id == place.target_id)
            size = len(place.requests)
            own = batch_price(bid, bid.offers.index(place.offer), size) / size
            return place if own < saved else None
        return None

    def _caused(self, batch: Candidate) -> float:
        """The expected price of the arrivals that would be late behind a batch on a free target."""
        late = load = 0.0
        for alike in self._coming.groups:
            bids = self._outlook.bids(alike.kind)
            dear = [price(bid) for bid in bids if bid.target.spec.is_dear]
            free = [bid for bid in bids if not bid.target.spec.is_dear]
            own = [bid for bid in free if bid.target is batch.bid.target]
            if alike.priority > batch.priority or not dear or not own:
                continue
            late += min(dear) * alike.behind(self._end_ns(batch, alike, own[0], free))
            if own[0].one_ns() < batch.latency_ns:
                load += len(alike) * own[0].one_ns() / len(free)
        since_ns = self._coming.since_ns()
        return (1.0 + min(1.0, load / since_ns)) * late / since_ns

    def _end_ns(self, batch: Candidate, alike: Alike, own: Bid, free: list[Bid]) -> float:
        """How long none of a group could start on a free target, beyond what the fastest takes."""
        now_ns, least_ns = self._outlook.view.now_ns, self._admission.pace(alike.kind).least_ns
        until_ns = inf
        for bid in free:
            if bid is not own:
                free_ns = STRETCH * (self._outlook.free_ns(bid) - now_ns)
                until_ns = min(until_ns, free_ns + bid.one_ns() - least_ns)
        end_ns = batch.latency_ns + own.one_ns() - least_ns
        return min(end_ns, until_ns) - alike.quiet_ns(now_ns)


def _has_lanes(target: TargetState) -> bool:
    return target.spec.is_dear and len(target.runs) + 1 < target.spec.width

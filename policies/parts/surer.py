"""Whether a batch that may well be late here would surely be in time on a target that is busy now.

`parts.odds` relies on a low quantile where more is served so. But if a faster target will surely do
all that is queued, a gamble on a slow one gains nothing, as long as the fast one is not needed for
more: the requests wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from policies.parts.odds import CHOICES
from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import LOOK_AGAIN_NS, Candidate
from scheduler.core.policy import Wake

_SURE = CHOICES[0]


def surer_elsewhere(outlook: Outlook, found: Sequence[Candidate]) -> Wake | None:
    """Until when a target waits for another one that will surely do all that is queued.

    Args:
        outlook: What the targets could do.
        found: The batches that could go next on one target; at least one. None is sure.

    Returns:
        None if one of them should go.
    """
    bid, queue = found[0].bid, found[0].queue
    if len(outlook.view.queues) > 1:
        return None
    soonest_ns, count = queue.soonest_ns(), len(queue)
    if _done_ns(outlook, bid, count) <= soonest_ns:
        return None
    for other in outlook.bids(queue.kind):
        spec = other.target.spec
        if other is bid or other.failed or spec.is_dear or spec.peer:
            continue
        if _done_ns(outlook, other, count) <= soonest_ns:
            wake_ns = max(outlook.free_ns(other), outlook.view.now_ns + LOOK_AGAIN_NS)
            return Wake(wake_ns, f"{other.target_id} will surely be in time")
    return None


def _done_ns(outlook: Outlook, bid: Bid, count: int) -> int:
    """When a target would surely have done so many requests, in one batch or one by one."""
    takes_ns = []
    for curve in bid.curves:
        ladder = curve.ladder(_SURE)
        takes_ns.append(count * ladder.latency_ns[0])
        if count <= ladder.sizes[-1]:
            takes_ns.append(ladder.latency_ns[bisect_left(ladder.sizes, count)])
    return outlook.starts_ns[bid.target_id] + min(takes_ns) + count * bid.item_ns

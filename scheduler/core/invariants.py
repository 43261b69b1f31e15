"""The invariants of the scheduler's state between two events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.scheduler import Scheduler


def violations(scheduler: Scheduler) -> list[str]:
    """The invariants that do not hold."""
    laws = {**_of_requests(scheduler), **_of_targets(scheduler), **_of_time(scheduler)}
    return [law for law, holds in laws.items() if not holds]


def _of_requests(scheduler: Scheduler) -> dict[str, bool]:
    ledger = scheduler.ledger
    records = ledger.records.values()
    queued = [request.id for queue in ledger.queues.values() for request in queue]
    running = list({i for run in scheduler.runs.values() for i in run.waiting})
    copies = {(run.id, i) for run in scheduler.runs.values() for i in run.waiting}
    return {
        "each pending request is queued or runs, once": sorted(queued + running)
        == sorted(ledger.records),
        "each record says where its request is": {r.request.id for r in records if r.queued}
        == set(queued),
        "each run says who waits for it": copies
        == {(run.id, r.request.id) for r in records for run in (r.run, r.hedge) if run},
        "a second copy runs elsewhere than the first": all(
            r.run is not None and r.run.target_id != r.hedge.target_id for r in records if r.hedge
        ),
        "no queue is empty": all(map(len, ledger.queues.values())),
        "a queue holds one class": all(
            request.kind == kind for kind, queue in ledger.queues.items() for request in queue
        ),
        "the queues of each model are counted": ledger.classes
        == Counter(kind.model for kind in ledger.queues),
        "every accepted request has ended once or is pending": ledger.accepted
        == sum(ledger.counts.values()) + len(records),
        "held bytes are those of the pending requests": ledger.held_bytes
        == sum(record.request.size_bytes for record in records),
    }


def _of_targets(scheduler: Scheduler) -> dict[str, bool]:
    targets = scheduler.targets.values()
    return {
        "no target holds more than its slots": all(
            len(t.runs) <= max(t.spec.slots, t.grandfathered) for t in targets
        ),
        "a target that is down holds nothing": all(t.up or not t.runs for t in targets),
        "runs are where they are said to be": {i: t.spec.id for t in targets for i in t.runs}
        == {i: run.target_id for i, run in scheduler.runs.items()},
    }


def _of_time(scheduler: Scheduler) -> dict[str, bool]:
    records = scheduler.ledger.records.values()
    now_ns, armed_ns = scheduler.now_ns, scheduler.alarm.armed_ns
    passed = [record for record in records if record.request.deadline_ns < now_ns]
    ahead = [record.request.deadline_ns for record in records if record not in passed]
    return {
        "nobody waits past the deadline unless late results are wanted": all(
            record.run and record.request.accept_late for record in passed
        ),
        "the wake-up that is armed is ahead": armed_ns is None or armed_ns > now_ns,
        "the next deadline will be noticed": not ahead
        or (armed_ns is not None and armed_ns <= min(ahead) + 1),
    }

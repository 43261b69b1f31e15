"""From the end of a request in the core to what its caller is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from scheduler.core.commands import Dispatch, Finish
from scheduler.core.offers import Offer
from scheduler.daemon.link import Ran
from scheduler.daemon.submission import Answer, Submission
from workers.link import Packed


class Pending(NamedTuple):
    """A request that has not ended, and when it came."""

    submission: Submission
    arrived_ns: int


class Results(NamedTuple):
    """What came of a run, until the core has said whom it is for."""

    dispatch: Dispatch
    offer: Offer
    outputs: dict[int, Packed]
    execute_ns: int
    notes: Mapping[str, Any]
    ran: Ran | None


def answer_of(finish: Finish, results: Results | None, total_ns: int) -> Answer:
    """What a caller is told.

    Args:
        finish: How the request ended.
        results: What came of its run; None where no run did.
        total_ns: How long all of it took.
    """
    answer = Answer(finish.outcome, finish.reason, finish.detail)
    if results is None:
        answer.timing_ns = (finish.queue_ns, 0, 0, total_ns)
        return answer
    dispatch, offer, outputs, execute_ns, answer.notes, ran = results
    if ran is None:
        answer.target, answer.offer = dispatch.target_id, offer
        answer.batch = len(dispatch.request_ids)
    else:
        answer.target = f"{dispatch.target_id}/{ran.device}"
        answer.offer = replace(offer, runtime=ran.runtime)
        answer.batch = ran.batch
    answer.outputs = outputs[finish.request_id]
    transfer_ns = total_ns - finish.queue_ns - execute_ns
    answer.timing_ns = (finish.queue_ns, transfer_ns, execute_ns, total_ns)
    return answer

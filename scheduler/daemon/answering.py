"""Turns the end of a request in the core into the answer to its caller."""

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
    """A request that has not ended, and when it arrived."""

    submission: Submission
    arrived_ns: int


class Results(NamedTuple):
    """The results of a run, kept until the core has finished its requests."""

    dispatch: Dispatch
    offer: Offer
    outputs: dict[int, Packed]
    execute_ns: int
    notes: Mapping[str, Any]
    ran: Ran | None
    digest: str


def answer_of(finish: Finish, results: Results | None, total_ns: int) -> Answer:
    """The answer to a caller.

    Args:
        finish: How the request ended.
        results: The results of its run; None if no run ended it.
        total_ns: The time from arrival to answer.
    """
    answer = Answer(finish.outcome, finish.reason, finish.detail)
    if results is None:
        answer.timing_ns = (finish.queue_ns, 0, 0, total_ns)
        return answer
    dispatch, offer, outputs, execute_ns, answer.notes, ran, answer.digest = results
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

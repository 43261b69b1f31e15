"""The parameters of an answer: the caller's own, and how the request was served."""

from __future__ import annotations

from typing import Any

from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.request import InferRequest, Parameters
from scheduler.result import with_restoring

_MEANT_FOR_US = frozenset(
    (
        "accept_late",
        "binary_data_output",
        "exact",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
        "triton_enable_empty_final_response",
    )
)


def echoed(parameters: Parameters) -> dict[str, Any]:
    """The request's parameters that mean nothing to the box, which the answer repeats."""
    return {key: value for key, value in parameters.items() if key not in _MEANT_FOR_US}


def how_it_went(inferred: Inferred, request: InferRequest) -> dict[str, Any]:
    """Where a request ran, what ran it, and where its time went, in microseconds.

    Decoding inputs counts as transfer.
    """
    queue_ns, transfer_ns, execute_ns, total_ns = with_restoring(
        inferred.timing, request.restore_ns
    )
    restored = {"restore_us": request.restore_ns // 1000} if request.restore_ns else {}
    return {
        **inferred.notes,
        **restored,
        "outcome": inferred.outcome.value,
        "target": inferred.target,
        "variant": inferred.variant,
        "runtime": inferred.runtime,
        "batch": inferred.batch,
        "queue_us": queue_ns // 1000,
        "transfer_us": transfer_ns // 1000,
        "execute_us": execute_ns // 1000,
        "total_us": total_ns // 1000,
        "laxity_us": int(inferred.laxity_ms * 1000),
    }

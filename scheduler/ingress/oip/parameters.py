"""The parameters of an answer: the caller's own, and how the request went."""

from __future__ import annotations

from typing import Any

from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.request import Parameters

_MEANT_FOR_US = frozenset(
    (
        "accept_late",
        "binary_data_output",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
        "triton_enable_empty_final_response",
    )
)


def echoed(parameters: Parameters) -> dict[str, Any]:
    """The parameters that mean nothing to the box, which an answer has as well."""
    return {key: value for key, value in parameters.items() if key not in _MEANT_FOR_US}


def how_it_went(inferred: Inferred) -> dict[str, Any]:
    """Where a request ran, what ran, and where its time went, in microseconds."""
    queue_ns, transfer_ns, execute_ns, total_ns = inferred.timing
    return {
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

"""When an answer is due, by the conventions of all kinds of clients; the first one found wins.

1. parameters.timeout, in microseconds (Triton)
2. the gRPC deadline
3. x-request-timeout-ms
4. x-request-timeout-seconds
5. x-envoy-expected-rq-timeout-ms (Envoy, Istio)
6. Prefer: wait=SECONDS (RFC 7240)
7. the model's default, the tenant's, the box's

The priority of a request is parameters.priority (Triton: 1 is first, 0 is the default), or the `u`
of the Priority header (RFC 9218: 0 is first).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.client.arguments import MAX_DEADLINE_MS
from scheduler.config.box import LimitsConfig
from scheduler.config.doors import DoorsConfig
from scheduler.core.requests import LOWEST_PRIORITY
from scheduler.errors import InvalidInput
from scheduler.ingress.oip.request import Parameters, integer
from scheduler.tenants import Tenant

_HEADERS_MS: tuple[tuple[str, float], ...] = (
    ("x-request-timeout-ms", 1.0),
    ("x-request-timeout-seconds", 1e3),
    ("x-envoy-expected-rq-timeout-ms", 1.0),
)
LEAST_MS = 1e-6
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])', re.IGNORECASE)
_URGENCY = re.compile(r"(?:^|,)\s*u\s*=\s*(\d{1,3})\s*(?:$|[,;])")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The deadlines of requests that name none.

    Attributes:
        any_ms: The deadline for any model.
        by_model_ms: Deadlines for single models.
        longest_ms: The longest deadline that the box allows. Longer defaults and gRPC deadlines are
            cut to it, because those only say how long a caller would wait at most.
    """

    any_ms: float
    by_model_ms: Mapping[str, float]
    longest_ms: float = MAX_DEADLINE_MS

    @classmethod
    def of(cls, doors: DoorsConfig, limits: LimitsConfig) -> Defaults:
        """The defaults of a configuration."""
        longest_ms = limits.max_budget_s * 1e3
        return cls(doors.default_deadline_ms, doors.model_deadline_ms, longest_ms)


def deadline_ms(
    parameters: Parameters,
    headers: Mapping[str, str],
    grpc_s: float | None,
    model: str,
    tenant: Tenant,
    defaults: Defaults,
) -> float:
    """The time that the caller allows, in milliseconds.

    Args:
        parameters: The request's parameters.
        headers: HTTP headers or gRPC metadata, with names in lower case.
        grpc_s: Time left to the gRPC deadline, in seconds; None if there is none.
        model: The model's name.
        tenant: Who asks.
        defaults: The defaults.

    Raises:
        InvalidInput: The first convention found is malformed, or asks for more than the box allows.
    """
    longest_ms = min(defaults.longest_ms, MAX_DEADLINE_MS)
    if timeout_us := integer(parameters, "timeout"):
        return _allowed("parameter 'timeout'", timeout_us / 1e3, longest_ms)
    if grpc_s is not None:
        return min(max(grpc_s * 1e3, LEAST_MS), longest_ms)
    for name, factor in _HEADERS_MS:
        if name in headers:
            return _allowed(name, _positive(name, headers[name]) * factor, longest_ms)
    if (prefer := headers.get("prefer")) and (found := _WAIT.search(prefer)):
        name = "Prefer: wait"
        return _allowed(name, _positive(name, found[1]) * 1e3, longest_ms)
    named = defaults.by_model_ms.get(model) or tenant.default_deadline_ms
    return min(named or defaults.any_ms, longest_ms)


def left_ms(given_ms: float, spent_ns: int) -> float:
    """What is left of a deadline after some work on the request, at least `LEAST_MS`."""
    return max(given_ms - spent_ns / 1e6, LEAST_MS) if spent_ns else given_ms


def priority(parameters: Parameters, headers: Mapping[str, str]) -> int | None:
    """The priority of a request, from 0 (first) to 7; None if it names none.

    Raises:
        InvalidInput: parameters.priority is not an integer from 0.
    """
    if asked := integer(parameters, "priority"):
        return min(asked - 1, LOWEST_PRIORITY)
    # RFC 9218, section 4: a value that can't be parsed is ignored, and the default applies.
    if (header := headers.get("priority")) and (found := _URGENCY.search(header)):
        urgency = int(found[1])
        return urgency if urgency <= LOWEST_PRIORITY else None
    return None


def _allowed(name: str, value_ms: float, longest_ms: float) -> float:
    if value_ms > longest_ms:
        raise InvalidInput(
            f"{name} asks for {value_ms / 1e3:.12g} s; this box allows {longest_ms / 1e3:.12g} s "
            "(limits.max_budget_s)"
        )
    return value_ms


def _positive(name: str, text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text.strip()) else 0.0
    if not number:
        raise InvalidInput(f"{name} is a number above 0, not {text!r:.80}")
    return number

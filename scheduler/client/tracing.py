"""The trace to which a caller's requests belong, if the program uses OpenTelemetry."""

from __future__ import annotations

import sys

_SAMPLED = 1


def traceparent() -> str:
    """The current span of the calling thread or task as a W3C `traceparent`.

    It is empty if there is none that is recorded. OpenTelemetry is never imported for this.
    """
    api = sys.modules.get("opentelemetry.trace")
    current = getattr(api, "get_current_span", None)  # it may be half imported
    if current is None:
        return ""
    context = current().get_span_context()
    if not (context.is_valid and context.trace_flags & _SAMPLED):
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

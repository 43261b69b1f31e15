"""`traceparent`, the header that names the trace to which a request belongs, and its caller's span.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import sys
from typing import Any

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


def written(trace_id: str, span_id: str) -> str:
    """The header of a span that is recorded; the ids are in hex, of 16 and 8 bytes."""
    return f"00-{trace_id}-{span_id}-{_SAMPLED:02x}"


def parsed(said: Any) -> tuple[str, str, bool] | None:
    """Trace, span, and whether it is sampled, of a `traceparent`; None for anything else."""
    found = _FORM.fullmatch(said) if isinstance(said, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_valid = int(trace_id, 16) and int(span_id, 16) and version != "ff"
    if not is_valid or (version == "00" and more):  # later versions may append something
        return None
    return trace_id, span_id, bool(int(flags, 16) & _SAMPLED)


def current() -> str:
    """That of the current OpenTelemetry span of the calling thread or task.

    It is empty if there is none that is recorded. OpenTelemetry is never imported for this.
    """
    api = sys.modules.get("opentelemetry.trace")
    current_span = getattr(api, "get_current_span", None)  # it may be half imported
    if current_span is None:
        return ""
    context = current_span().get_span_context()
    if not (context.is_valid and context.trace_flags & _SAMPLED):
        return ""
    return written(f"{context.trace_id:032x}", f"{context.span_id:016x}")

"""The configuration of traces."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from scheduler.config.types import Section, Unquoted


def _collector_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or "@" in parts.netloc:
        raise ValueError(
            "should be http://HOST:PORT or https://HOST:PORT; a password or token goes into "
            "the environment variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"


class TracingConfig(Section):
    """Traces of requests for an OpenTelemetry collector; docs/tracing.md says what they contain."""

    endpoint: Annotated[str, AfterValidator(_collector_url), Unquoted()]
    """Where they are sent, by OTLP over HTTP; a URL without a path stands for its /v1/traces."""

    share: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0
    """The share of the requests that are traced although their callers don't trace them, 0 to 1.
    Those whose callers do, by a sampled traceparent, always are."""

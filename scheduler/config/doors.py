"""The configuration of the doors that speak HTTP and gRPC."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scheduler.config.types import ConfigPath, Count, Positive, Seconds, Section


class TlsConfig(Section):
    """The certificates of addresses that begin with tls://; read again when they change."""

    cert: ConfigPath
    """The server's certificate and the chain above it, in PEM."""

    key: ConfigPath
    """Its private key, in PEM."""

    client_ca: ConfigPath | None = None
    """Who signs the certificates that clients must show; without it they need none."""


class DoorsConfig(Section):
    """How the HTTP and gRPC doors work; where they are is in listen."""

    processes: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Processes for each protocol; one more helps where one takes all of a core."""

    niceness: Annotated[int, Field(strict=True, ge=0, le=19)] = 5
    """How far the doors stand back behind the scheduler when both want the processor."""

    compat: Literal["laxity", "triton"] = "laxity"
    """triton answers refusals with Triton's status codes and messages."""

    default_deadline_ms: Positive = 10_000.0
    """The deadline of a request that names none, unless its tenant or model has one; none is longer
    than limits.max_budget_s."""

    model_deadline_ms: dict[str, Positive] = Field(default_factory=dict)
    """The same by model."""

    shared_memory: bool = False
    """Whether clients may name shared memory of the box as inputs and outputs."""

    json_mb: Count = 8
    """The JSON of one request, or what a message has over gRPC that is not raw_input_contents, in
    10^6 bytes; tensors beside it count for limits.body_mb."""

    held_mb: Count = 256
    """Bodies that one process holds at once, in 10^6 bytes."""

    grpc_messages: Count = 16
    """Messages that one process reads at once over gRPC, and streams that it serves besides."""

    items: Count = 256
    """Items that one request may hold in its batch dimension."""

    request_s: Seconds = 10.0
    """How long a request may take to come in, plus a second for each 100 KB of it."""

    idle_s: Seconds = 75.0
    """How long a connection may be idle."""

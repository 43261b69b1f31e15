"""The configuration of the HTTP and gRPC doors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from scheduler.config.types import (
    ConfigPath,
    Count,
    Positive,
    Seconds,
    Section,
    one_or_more,
    written_as,
)

HostName = Annotated[
    str, written_as(r"[\w-]+(\.[\w-]+)*\.?", "a host name without a port, like box.example")
]


class TlsConfig(Section):
    """The certificates of addresses that begin with tls://; reloaded when they change."""

    cert: ConfigPath
    """The server's certificate and its chain, in PEM."""

    key: ConfigPath
    """Its private key, in PEM."""

    client_ca: ConfigPath | None = None
    """The CA that signs the certificates that clients must show; without it they need none."""


class DoorsConfig(Section):
    """How the HTTP and gRPC doors work; listen has their addresses."""

    processes: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Processes for each protocol; another one helps if one uses a whole core."""

    niceness: Annotated[int, Field(strict=True, ge=0, le=19)] = 5
    """The niceness of the doors' processes, so that the scheduler gets the processor first."""

    compat: Literal["laxity", "triton"] = "laxity"
    """triton answers refusals with Triton's status codes and messages."""

    default_deadline_ms: Positive = 10_000.0
    """The deadline of a request that sets none, unless its tenant or model has one; at most
    limits.max_budget_s."""

    model_deadline_ms: dict[str, Positive] = Field(default_factory=dict)
    """The same for single models, by name."""

    host_names: Annotated[tuple[HostName, ...], BeforeValidator(one_or_more)] = ()
    """Names that an HTTP door without tokens answers to, such as a reverse proxy's; localhost, IP
    addresses and this machine's name need no mention."""

    shared_memory: bool = False
    """Whether clients may use shared memory of the box for inputs and outputs."""

    json_mb: Count = 8
    """The most JSON in one request, or the most in a gRPC message apart from raw_input_contents, in
    10^6 bytes; binary tensors count towards limits.body_mb."""

    held_mb: Count = 256
    """The most request bodies that one process holds at once, in 10^6 bytes. Over gRPC, answers
    that the client has not read yet count as well."""

    grpc_messages: Count = 16
    """The most gRPC messages that one process reads at once, and likewise the most streams."""

    items: Count = 256
    """The most items that one request may have in its batch dimension."""

    request_s: Seconds = 10.0
    """How long a request may take to arrive, in seconds, plus a second for each 100 KB of it."""

    idle_s: Seconds = 75.0
    """How long a connection may be idle, in seconds."""

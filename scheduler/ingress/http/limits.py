"""What the HTTP door takes at most."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RATE = 1e5
"""Bytes per second at which bodies come in, and long answers are read, at least."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one process of the door takes at most.

    Attributes:
        head_bytes: Request line and headers.
        body_bytes: A body, also after decompression.
        json_bytes: The JSON in it.
        held_bytes: All bodies that are coming in or waiting to be answered.
        connections: Open connections; an idle one makes room for a new one.
        pipelined: Requests of one connection that are answered at once.
        items: The batch dimension of one request.
        request_s: How long a request may take to come in, or an answer not to be read on.
        idle_s: How long a connection may be idle.
    """

    head_bytes: int
    body_bytes: int
    json_bytes: int
    held_bytes: int
    connections: int
    pipelined: int
    items: int
    request_s: float
    idle_s: float

    def patience_s(self, size: int) -> float:
        """How long a body of some size may take."""
        return self.request_s + size / LEAST_RATE

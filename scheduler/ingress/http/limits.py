"""The limits of the HTTP door."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RATE = 1e5
"""The least rate in bytes per second at which bodies must arrive and long answers be read."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one process of the door.

    Attributes:
        head_bytes: Size of the request line and headers.
        body_bytes: Size of a body, also after decompression.
        json_bytes: Size of the JSON in a body.
        held_bytes: Size of all bodies being received or waiting for their answer.
        connections: Open connections; an idle one is closed for a new one.
        pipelined: Requests of one connection in flight at once.
        request_s: How long a request may take to arrive, plus the time of its body at the least
            rate; also how long a client may read an answer below that rate.
        idle_s: How long a connection may be idle.
    """

    head_bytes: int
    body_bytes: int
    json_bytes: int
    held_bytes: int
    connections: int
    pipelined: int
    request_s: float
    idle_s: float

    def patience_s(self, size: int) -> float:
        """How long a request with a body of some size may take to arrive."""
        return self.request_s + size / LEAST_RATE

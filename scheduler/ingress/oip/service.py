"""What both doors are told by the configuration, and share while they run."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.shared_memory import SharedMemory


@dataclass(slots=True)
class Service:
    """What answers need.

    Attributes:
        box: The scheduler.
        memory: The regions that clients have registered.
        defaults: The deadlines of requests that name none.
        compat: Whose status codes and messages refusals have.
        items: The batch dimension that one request may have.
        log_level: The least severe message that is logged.
        body_bytes: How large the tensors of one request may be.
        draining: Whether nothing new is begun.
        no_orders: Why nothing can be changed here; empty where it can.
    """

    box: Box
    memory: SharedMemory
    defaults: Defaults
    compat: str
    items: int
    log_level: str
    body_bytes: int
    draining: bool = False
    no_orders: str = ""

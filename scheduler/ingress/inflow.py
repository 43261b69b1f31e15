"""A large body being received: its bytes are counted as they arrive, and a stall is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.errors import Overloaded
from scheduler.ingress.held import Held
from scheduler.tenants import Tenant
from scheduler.wire import FrameReader

STALL_S = 30.0
"""How long a body may stall; as long as TCP waits for a link that is gone."""


class Inflow:
    """The body that one connection is receiving.

    Only received bytes count, not the declared size: declaring a size costs the sender nothing, and
    memory is taken only as it is filled.

    Args:
        reader: Reads the body.
        held: Counts the bytes of all bodies being received.
        on_stall: Called when nothing of a body has arrived for too long.
    """

    def __init__(self, reader: FrameReader, held: Held, on_stall: Callable[[], None]) -> None:
        """Starts without a body."""
        self._reader = reader
        self._held = held
        self._on_stall = on_stall
        self._counted = 0
        self._tenant: Tenant | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, tenant: Tenant) -> None:
        """Counts received bytes; skips the body if they are too many, in all or of this tenant."""
        came = self._reader.held_bytes
        if came < self._counted:  # that body is complete
            self.end()
        if came == self._counted:
            return
        self._tenant = self._tenant or tenant
        try:
            self._held.hold(self._tenant, came - self._counted)
        except Overloaded:
            self._reader.skip()
            self.end()
            return
        self._counted = came
        if self._timer is None:
            self._watch()

    def end(self) -> None:
        """Stops counting: the body is complete, or is no longer wanted."""
        if self._tenant is not None:
            self._held.release(self._tenant, self._counted)
            self._counted, self._tenant = 0, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        before = self._counted

        def look() -> None:
            if self._counted == before:
                self._on_stall()
            else:
                self._watch()

        self._timer = asyncio.get_running_loop().call_later(STALL_S, look)

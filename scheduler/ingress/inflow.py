"""A large body on its way in: counted as it comes, and given up where nothing more comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.errors import Overloaded
from scheduler.ingress.held import Held
from scheduler.tenants import Tenant
from scheduler.wire import FrameReader

STALL_S = 30.0
"""For how long a body may stand still; as long as TCP waits for a link that is gone."""


class Inflow:
    """The body that one connection reads.

    What it says of its size does not count: it costs its sender nothing to say, and memory is taken
    as it is filled.

    Args:
        reader: Reads it.
        held: Counts the bytes of all bodies that are coming in.
        on_stall: Called when nothing has come of a body for too long.
    """

    def __init__(self, reader: FrameReader, held: Held, on_stall: Callable[[], None]) -> None:
        """None is coming in."""
        self._reader = reader
        self._held = held
        self._on_stall = on_stall
        self._counted = 0
        self._tenant: Tenant | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, tenant: Tenant) -> None:
        """Bytes came; where there are too many, of all or of this tenant, the body is skipped."""
        came = self._reader.held_bytes
        if came < self._counted:  # that one is there
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
        """It is there, or nobody waits for the rest."""
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

"""End a process that can no longer use its device, such as a GPU after an illegal access."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from workers.crash_guard import CrashGuard
from workers.runtimes.base import Losable, Runtime, Session
from workers.tensors import Array


def print_end(reason: str) -> None:
    """A `tell` for processes of which only the log is read."""
    print(reason, file=sys.stderr, flush=True)


class LostDevice:
    """Ends this process once its device is lost to it; the next process starts afresh."""

    def __init__(self, tell: Callable[[str], None], guard: CrashGuard) -> None:
        """Call `tell` with the reason before the process ends, and let the guard count it."""
        self._tell = tell
        self._guard = guard

    def end_if_lost(self, runtime: Runtime, attempt: str) -> None:
        """Call this after a failure of what the guard knows by the key `attempt`."""
        reason = runtime.lost() if isinstance(runtime, Losable) else None
        if reason is None:
            return
        try:
            self._guard.count(attempt)
            self._tell(f"{runtime.name} can no longer use the device in this process: {reason}")
        finally:
            os._exit(1)

    def watched(self, session: Session, runtime: Runtime, attempt: str) -> Session:
        """The session, with `end_if_lost` after each run that fails."""
        if not isinstance(runtime, Losable):
            return session
        return _Watched(session, lambda: self.end_if_lost(runtime, attempt))


class _Watched:
    def __init__(self, session: Session, look: Callable[[], None]) -> None:
        self.max_batch = session.max_batch
        self._session = session
        self._look = look

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._session.run(inputs)
        except Exception:
            self._look()
            raise

    def close(self) -> None:
        self._session.close()

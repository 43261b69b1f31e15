"""End a process that can no longer use its device, such as a GPU after an illegal access."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from workers.runtimes.base import Losable, Runtime, Session
from workers.tensors import Array


def print_end(reason: str) -> None:
    """A `tell` for processes of which only the log is read."""
    print(reason, file=sys.stderr, flush=True)


class LostDevice:
    """Ends this process once its device is lost to it; the next process starts afresh."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with the reason before the process ends."""
        self._tell = tell

    def end_if_lost(self, runtime: Runtime) -> None:
        """Call this after a failure, within the attempt that the crash guard counts."""
        reason = runtime.lost() if isinstance(runtime, Losable) else None
        if reason is None:
            return
        try:
            self._tell(f"{runtime.name} can no longer use the device in this process: {reason}")
        finally:
            os._exit(1)

    def watched(self, session: Session, runtime: Runtime) -> Session:
        """The session, with a look at the device after each run that fails."""
        if not isinstance(runtime, Losable):
            return session
        return _Watched(session, lambda: self.end_if_lost(runtime))


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

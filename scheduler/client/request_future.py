"""The future that `Client.submit` returns."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future, TimeoutError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.client.exchange_thread import ExchangeThread
    from scheduler.client.sync_client import Client

_telling = threading.Lock()

_HEED_S = 0.5
"""The longest single wait for a lock. If a signal arrives just before such a wait, Python handles
it only after the wait, so Ctrl-C would otherwise take until the deadline."""


class RequestFuture(Future[Any]):
    """What `Client.submit` returns; cancelling it cancels the request on the box."""

    def __init__(self, client: Client, running: ExchangeThread, call_id: int) -> None:
        """Belongs to one call on a client's exchange, which ends it on the exchange's thread."""
        super().__init__()
        self._client = client  # a client that nothing refers to closes, and cancels this
        self._running = running
        self._call_id = call_id
        self._told = False

    def cancel(self) -> bool:
        """Cancels the request; returns False if it has already ended."""
        if not super().cancel():
            return False
        with _telling:
            if not self._told:  # as executors do, so that `wait` and `as_completed` see it
                self._told = True
                self.set_running_or_notify_cancel()
        # After `close` nobody needs to be told: the box has seen the connection close.
        with contextlib.suppress(RuntimeError):
            self._running.exchange.post(self._call_id)
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Waits up to `timeout` seconds for the result, like `concurrent.futures.Future.result`.

        Raises:
            RuntimeError: It has not ended, and this is a callback of a future of the same client,
                or this process was forked since.
        """
        try:
            return super().result(self._waited(timeout))
        finally:
            del self  # its error's traceback leads here: a cycle would keep the caller's tensors

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits up to `timeout` seconds for the end, like `concurrent.futures.Future.exception`.

        Raises:
            RuntimeError: It has not ended, and this is a callback of a future of the same client,
                or this process was forked since.
        """
        return super().exception(self._waited(timeout))

    def _waited(self, timeout: float | None) -> float | None:
        """Waits until it has ended or little time is left; returns the time left."""
        if self.done():
            return timeout
        self._running.exchange.check_process()
        check_may_wait(self._running.thread)
        end_s = None if timeout is None else time.monotonic() + timeout
        while end_s is None or end_s - time.monotonic() > _HEED_S:
            with contextlib.suppress(TimeoutError):
                super().exception(_HEED_S)
            if self.done():
                return 0
        return end_s - time.monotonic()


def check_may_wait(thread: threading.Thread) -> None:
    """Checks that this is not the thread on which a client's answers arrive.

    Raises:
        RuntimeError: It is, so the awaited answer would never arrive.
    """
    if threading.current_thread() is thread:
        raise RuntimeError(
            "a callback can't wait for another answer of its client, which comes on the same "
            "thread: submit, and add a callback to that future, or wait on a thread of your own"
        )

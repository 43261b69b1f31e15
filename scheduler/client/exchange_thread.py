"""The thread on which a client's exchange runs, from its first call to its last answer."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import uvloop

from scheduler.client.exchange import Exchange


class ExchangeThread:
    """An exchange with an event loop and a thread of its own.

    Args:
        owner: Whoever it is for; it ends when that is collected, and at the interpreter's exit.
        url: Of the daemon.
        token: The daemon's token.

    Attributes:
        exchange: What runs there.
        thread: The thread.

    Raises:
        AddressError: The URL is not one of a daemon.
    """

    def __init__(self, owner: object, url: str, token: str | None) -> None:
        """Runs, not connected yet."""
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.exchange = Exchange(self._loop, url, token)
        self.thread = threading.Thread(
            target=_run, args=(self._loop, self.exchange), name="laxity-client", daemon=True
        )
        self._finalizer = weakref.finalize(owner, _stop, self._loop, self.thread)
        self.thread.start()

    def connect(self, timeout_s: float) -> None:
        """Waits for a connection; errors as in `Exchange.connect`."""
        connecting: Any = self.exchange.connect(timeout_s)
        asyncio.run_coroutine_threadsafe(connecting, self._loop).result()

    def close(self) -> None:
        """Cancels what is in flight, closes the connection and ends the thread."""
        self._finalizer()


def _run(loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        exchange.close()
        tasks = asyncio.all_tasks(loop)
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(exchange.wait_closed())
        loop.close()
        # What other threads posted meanwhile; from here on `post` raises.
        exchange.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join()

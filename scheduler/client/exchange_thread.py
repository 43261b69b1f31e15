"""The thread on which a client's exchange runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import Any

from scheduler.client.exchange import Exchange
from scheduler.client.tls import Tls

_new_event_loop = asyncio.new_event_loop
with contextlib.suppress(ModuleNotFoundError):  # there is none for Windows
    from uvloop import new_event_loop as _new_event_loop


class ExchangeThread:
    """An exchange with an event loop and a thread of its own.

    Args:
        owner: The client; the thread ends when it is garbage collected, and at interpreter exit.
        url: The daemon's URL.
        token: The daemon's token.
        tls: The files for TLS.

    Attributes:
        exchange: The exchange that runs there.
        thread: The thread.

    Raises:
        AddressError: The URL is not a valid address of a daemon.
    """

    def __init__(self, owner: object, url: str, token: str | None, tls: Tls) -> None:
        """Starts the thread, unconnected."""
        self._loop: asyncio.AbstractEventLoop = _new_event_loop()
        self.exchange = Exchange(self._loop, url, token, tls)
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
        """Cancels calls in flight, closes the connection and ends the thread."""
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
        # Cancels what other threads have posted since; from here on `post` raises.
        exchange.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join()

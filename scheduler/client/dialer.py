"""Connects to the daemon, and reconnects with backoff."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from scheduler.address import parse_address, plainly
from scheduler.backoff import Backoff
from scheduler.client.connection import connect
from scheduler.client.tls import Tls, TlsFailure
from scheduler.errors import LaxityError, ProtocolError, Unauthorized, Unavailable

if TYPE_CHECKING:
    from scheduler.client.exchange import Exchange

_FIRST_DELAY_NS = 5_000_000
_LONGEST_DELAY_NS = 250_000_000

_REFUSED_NS = 5_000_000_000
"""How long a daemon's refusal applies to all calls; its tokens may change while it runs."""

_ASLEEP = "is edge_agent running? It listens some seconds after its start."
_OTHERS = (
    "only the user who runs edge_agent may use its socket; others reach a loopback address under "
    "listen.native, e.g. LAXITY_URL=tcp://127.0.0.1:8702"
)


class Dialer:
    """Opens connections for an exchange, with exponential backoff and jitter between attempts.

    The backoff outlives a connection: only `worked` resets it, so that a daemon that welcomes
    clients and then drops them is not dialled in a tight loop.

    Attributes:
        reason: Why there is no connection, for people.
        is_local: Whether the daemon's address is a unix socket.
    """

    def __init__(self, url: str, token: str | None, tls: Tls | None, exchange: Exchange) -> None:
        """Does nothing until `dial`.

        Raises:
            AddressError: The URL is not a valid address of a daemon.
        """
        self.url = url
        self.reason = "no answer yet"
        self._hint = _ASLEEP
        self._is_turned_away = False
        self._address = parse_address(url)
        self.is_local = self._address.path is not None
        self._token = token
        self._tls = tls
        self._exchange = exchange
        self._backoff = Backoff(_FIRST_DELAY_NS, _LONGEST_DELAY_NS)
        self._waits = False
        self._refused: LaxityError | None = None
        self._ask_again_ns = 0
        self._task: asyncio.Task[None] | None = None

    def dial(self) -> None:
        """Starts connecting, unless it already is."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._dial())

    def worked(self) -> None:
        """Records that the connection gave an answer, so that a loss is redialled at once."""
        self._waits = False

    def close(self) -> None:
        """Stops connecting."""
        if self._task is not None:
            self._task.cancel()

    def refusal(self) -> LaxityError | None:
        """The daemon's refusal, until it is time to ask again; None if there is none."""
        if time.monotonic_ns() >= self._ask_again_ns:
            self._refused = None
        return self._refused

    def unreachable(self) -> Unavailable:
        """The error for requests that could not be sent."""
        if self._is_turned_away:
            return Unavailable(f"the daemon at {self.url} lets nobody in for now: {self.reason}")
        hint = f"; {self._hint}" if self._hint else ""
        return Unavailable(f"cannot reach the daemon at {self.url}: {self.reason}{hint}")

    async def _dial(self) -> None:
        exchange = self._exchange
        try:
            while exchange.wants_connection():
                await self._wait()
                try:
                    connection = await connect(
                        self._address, self._token, exchange.on_frame, exchange.on_lost, self._tls
                    )
                except (Unauthorized, ProtocolError) as error:
                    self._refused = error
                    self._ask_again_ns = time.monotonic_ns() + _REFUSED_NS
                    exchange.on_refused(error)
                    return
                except Exception as error:  # Anything that a resolver, TLS or the server may raise.
                    self.reason = plainly(error) or type(error).__name__
                    self._is_turned_away = isinstance(error, LaxityError)
                    self._hint = _hint(error)
                else:
                    exchange.on_open(connection)
        finally:
            self._task = None

    async def _wait(self) -> None:
        if self._waits:
            await asyncio.sleep(self._backoff.next_ns() / 1e9)
        else:
            self._waits = True
            self._backoff.reset()


def _hint(error: Exception) -> str:
    if isinstance(error, TlsFailure):  # its message already has a hint
        return ""
    return _OTHERS if isinstance(error, PermissionError) else _ASLEEP

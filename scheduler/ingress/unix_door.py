"""A door on a unix socket, whose file somebody may delete while it is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

log = structlog.get_logger()

_LOOK_S = 5.0
"""How often it is looked whether the file is still there, which nothing else says."""


class UnixDoor:
    """Listens on a path, and there again where the file is gone, as after a cleaning of `/tmp`.

    Args:
        protocol: Makes the protocol of one more connection.
        path: Where; a socket file that is left there is replaced.
        inherited: A socket that listens there already, and may do so for other processes, too. Of
            these, one alone is there again after the file was gone.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BufferedProtocol],
        path: str,
        inherited: socket.socket | None = None,
    ) -> None:
        """Closed."""
        self._protocol = protocol
        self._path = path
        self._inherited = inherited
        self._server: asyncio.AbstractServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> UnixDoor:
        """Listens.

        Raises:
            OSError: The address can't be had.
        """
        loop = asyncio.get_running_loop()
        if self._inherited is not None and _is_answered(self._path):
            self._server = await loop.create_unix_server(self._protocol, sock=self._inherited)
        else:
            if self._inherited is not None:
                self._inherited.close()
            # A socket file of a killed predecessor; the agent has made sure that nobody uses it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            await self._listen()
        self._watch = loop.create_task(keep_there(self._path, self._listen))
        return self

    def close(self) -> None:
        """Lets nobody else in; those who are in stay."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()

    async def _listen(self) -> None:
        if self._server is not None:
            self._server.close()  # nobody can reach it any more
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol, self._path)
        os.chmod(self._path, 0o600)


async def keep_there(path: str, listen: Callable[[], Awaitable[None]]) -> None:
    """Looks after a door's socket file until cancelled.

    Args:
        path: Where it is.
        listen: Makes it anew; called where it is gone, with its folder there.
    """
    told = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        if os.path.lexists(path):
            continue
        try:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await listen()
        except OSError as error:
            if told != str(error):
                log.error("a door's socket file is gone", path=path, error=str(error))
            told = str(error)
        else:
            log.warning("a door's socket file was gone and is there again", path=path)
            told = ""


def _is_answered(path: str) -> bool:
    """Whether somebody listens there: a socket can't tell whether the file is still its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # more wait there than are let in
            return True
        except OSError:
            return False
    return True

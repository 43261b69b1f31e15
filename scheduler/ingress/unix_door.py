"""A door on a unix socket, whose file somebody may delete while it is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
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
    """

    def __init__(self, protocol: Callable[[], asyncio.BufferedProtocol], path: str) -> None:
        """Closed."""
        self._protocol = protocol
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> UnixDoor:
        """Listens.

        Raises:
            OSError: The address can't be had.
        """
        # A socket file left by a killed predecessor; the agent has made sure that nobody uses it.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        await self._listen()
        self._watch = asyncio.get_running_loop().create_task(self._stay())
        return self

    def close(self) -> None:
        """Lets nobody else in; those who are in stay."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol, self._path)
        os.chmod(self._path, 0o600)

    async def _stay(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(_LOOK_S)
            if os.path.lexists(self._path):
                continue
            try:
                Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._server is not None:
                    self._server.close()  # nobody can reach it any more
                await self._listen()
            except OSError as error:
                if told != str(error):
                    log.error("a door's socket file is gone", path=self._path, error=str(error))
                told = str(error)
            else:
                log.warning("a door's socket file was gone and is there again", path=self._path)
                told = ""

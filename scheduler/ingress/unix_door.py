"""A door on a unix socket, whose file may be deleted while the door is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from scheduler.daemon.asyncio_tasks import start_task

log = structlog.get_logger()

_LOOK_S = 5.0
"""How often to check that the file still exists, because nothing reports its removal."""


class UnixDoor:
    """Listens on a path, and again if its file disappears, for instance when `/tmp` is cleaned.

    Args:
        protocol: Makes the protocol of a new connection.
        path: The path; a socket file left there is replaced.
        inherited: A socket that already listens on the path, perhaps shared with other processes.
            If the file disappears, only one of these processes listens there again.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BufferedProtocol],
        path: str,
        inherited: socket.socket | None = None,
    ) -> None:
        """Closed until `open`."""
        self._protocol = protocol
        self._path = path
        self._inherited = inherited
        self._server: asyncio.AbstractServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> UnixDoor:
        """Starts to listen.

        Raises:
            OSError: The path can't be bound.
        """
        loop = asyncio.get_running_loop()
        if self._inherited is not None and is_answered(self._path):
            self._server = await loop.create_unix_server(self._protocol, sock=self._inherited)
        else:
            if self._inherited is not None:
                self._inherited.close()
            # A killed predecessor's socket file; the agent has made sure that nobody uses it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            await self._listen()
        self._watch = start_task(keep_there(self._path, self._listen), f"the watch of {self._path}")
        return self

    def close(self) -> None:
        """Accepts no more connections; open ones stay."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()

    async def _listen(self) -> None:
        if self._server is not None:
            self._server.close()  # its file is gone, so nobody can reach it
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol, self._path)
        os.chmod(self._path, 0o600)


async def keep_there(path: str, listen: Callable[[], Awaitable[None]]) -> None:
    """Restores a door's socket file whenever it disappears, until cancelled.

    Args:
        path: The file.
        listen: Creates the file again; called when it is gone, once its folder exists.
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
            log.warning("a door's socket file was gone and has been restored", path=path)
            told = ""


def is_answered(path: str) -> bool:
    """Whether somebody listens on a path; a socket can't tell whether the file is still its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # the backlog is full
            return True
        except OSError:
            return False
    return True

"""Whether Ray can bring back the processes of a box's actors.

Without some files it starts no further process, though those that run go on. Whatever cleans /tmp
or empties the state folder may remove them at any time. A process that dies after that would never
come back, and Ray would try for ever. It also loses an actor whose process dies while the disk with
its files is full, even if there is room a moment later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from scheduler.files import replace_file

_LOOK_S = 5.0
"""How often to look, because nothing reports a removal."""

_COUNT_LOOKS = 4
"""After so many looks the processes are counted, which takes more time."""

_GONE_COUNTS = 3
"""A process that is missing at so many counts in a row, so for a minute, does not come back."""


class RayFiles:
    """The token and the sockets that are there when this is made.

    Args:
        folder: The folder of Ray's files.
    """

    def __init__(self, folder: Path) -> None:
        """Note them.

        Raises:
            OSError: The token can't be read.
        """
        self.folder = folder
        self._sockets = list(folder.glob("session_latest/sockets/raylet"))
        token = os.environ.get("RAY_AUTH_TOKEN_PATH")
        self._token = Path(token) if token is not None else None
        self._secret = self._token.read_bytes() if self._token is not None else b""

    def put_back_token(self) -> None:
        """Write the token again if its file is gone: Ray's processes read it when they start."""
        if self._token is None or self._token.exists():
            return
        try:
            self._token.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._token, self._secret, mode=0o600)
        except OSError:  # there may be room for it later
            return

    def lack_sockets(self) -> bool:
        """Whether processes that are started now could not reach Ray."""
        return not all(map(os.path.lexists, self._sockets))

    def watch(
        self,
        actors: tuple[str, ...],
        count: Callable[[], int],
        is_ready: Callable[[], bool],
        start_over: Callable[[str], object],
        stopping: threading.Event,
    ) -> None:
        """Look after them until `stopping` is set, or Ray can't start what has to be started.

        While all actors run, the box serves without the sockets as well.

        Args:
            actors: The class names of the actors that this process has started.
            count: Returns how many of them serve, or are to serve.
            is_ready: Returns whether all of them have started.
            start_over: Called at most once, with the reason.
            stopping: Set when the agent stops.
        """
        looks = missing = 0
        while not stopping.wait(_LOOK_S):
            self.put_back_token()
            if self.lack_sockets() and _running(actors) < count():
                start_over(f"Ray's sockets in {self.folder} have been removed")
                return
            looks += 1
            if looks % _COUNT_LOOKS == 0 and is_ready():
                missing = missing + 1 if _running(actors) < count() else 0
                if missing == _GONE_COUNTS:
                    start_over("Ray has not brought back a process for a minute")
                    return


def _running(actors: tuple[str, ...]) -> int:
    """How many processes of actors this process has started, directly or not."""
    titles, found = tuple(f"ray::{actor}" for actor in actors), 0
    for child in psutil.Process().children(recursive=True):
        try:
            found += " ".join(child.cmdline()).startswith(titles)
        except psutil.Error:
            continue
    return found

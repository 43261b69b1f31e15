"""Serves the model files of a box to other boxes: the list of each model's files, and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from scheduler.daemon.asyncio_tasks import keep_task
from scheduler.errors import InvalidInput, LaxityError, ModelNotFound, Unavailable
from scheduler.ingress import replies
from scheduler.ingress.replies import Say
from scheduler.model_files import CHUNK_BYTES, FileEntry, entries_of
from scheduler.wire import Header

MESSAGES = frozenset(("model_files", "model_file"))
"""The native door's messages that it answers."""

_OFFSETS = 1 << 63
"""The system's offsets within files are below this."""


class ModelShelf:
    """Reads a model repository in threads, so that the scheduler's loop never waits for a disk.

    Args:
        root: The repository.
    """

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        self._root = root
        self._entries: dict[str, dict[str, FileEntry]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def take(self, header: Header, models: Sequence[str], say: Say) -> None:
        """Starts to answer a message.

        Args:
            header: The message.
            models: The names of the models that are served.
            say: Called later, with the answer.

        Raises:
            ModelNotFound: There is no such model.
        """
        model = header.get("model")
        if not isinstance(model, str) or model not in models:
            raise ModelNotFound.unknown(str(model))
        keep_task(self._answer(header, model, say), self._reading)

    async def _answer(self, header: Header, model: str, say: Say) -> None:
        message_id = header.get("id")
        try:
            if header["t"] == "model_files":
                entries = await asyncio.to_thread(entries_of, self._root / model)
                self._entries[model] = {entry.path: entry for entry in entries}
                say(replies.reply(message_id, [[e.path, e.sha256, e.size] for e in entries]), ())
            else:
                content = await asyncio.to_thread(self._read, header, model)
                say(replies.reply(message_id, None), (content,))
        except LaxityError as error:
            say(replies.refusal(message_id, error), ())
        except OSError as error:
            say(replies.refusal(message_id, Unavailable(str(error))), ())

    def _read(self, header: Header, model: str) -> bytes:
        path, offset = header.get("path"), header.get("offset")
        entry = self._entries.get(model, {}).get(path) if isinstance(path, str) else None
        if entry is None or type(offset) is not int or not 0 <= offset < _OFFSETS:
            raise InvalidInput("model_file needs a path from model_files and an offset from 0")
        with (self._root / model / entry.path).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

"""Answers requests of the HTTP door, in the content coding that each client accepts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from scheduler.daemon.asyncio_tasks import keep_task
from scheduler.ingress.http.coding import accepted_coding, encoded
from scheduler.ingress.http.connection import log_failure
from scheduler.ingress.http.messages import Response, as_refusal
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.outcomes import is_unexpected, refusal_of
from scheduler.ingress.oip.service import Service

THREAD_BYTES = 64 * 1024
"""Bodies from this size on are compressed and decompressed in a thread: zlib releases the GIL."""

_CODERS = 2


class Responder:
    """Runs the work of each turn, and gives the turn exactly one answer.

    Args:
        service: The settings and state that the doors share.
    """

    def __init__(self, service: Service) -> None:
        """Starts with no turns."""
        self.service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._coders = ThreadPoolExecutor(_CODERS, "coder", initializer=_stand_back)

    def start(self, turn: Turn, work: Coroutine[Any, Any, Response | None]) -> None:
        """Answers a turn with the result of some work; None if the work answers it otherwise."""
        turn.on_gone = partial(_cancel, keep_task(self._run(turn, work), self._tasks))

    def refuse(self, turn: Turn, error: BaseException) -> None:
        """Answers a turn with an error."""
        if is_unexpected(error):
            log_failure(error)
        turn.answer(as_refusal(refusal_of(error, self.service.compat)))

    def finish(self, turn: Turn, response: Response) -> None:
        """Answers a turn, in the content coding that the client accepts."""
        size = response.size
        coding = accepted_coding(turn.request.headers.get("accept-encoding", ""), size)
        if coding is None:
            turn.answer(response)
        elif size < THREAD_BYTES:
            turn.answer(_coded(response, coding))
        else:
            self.start(turn, self._code(response, coding))

    async def apart(self, work: Callable[..., Any], *given: Any) -> Any:
        """Runs CPU-bound work in a thread that yields to the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._coders, work, *given)

    async def _code(self, response: Response, coding: str) -> Response:
        coded: Response = await self.apart(_coded, response, coding)
        return coded

    async def _run(self, turn: Turn, work: Coroutine[Any, Any, Response | None]) -> None:
        try:
            response = await work
        except asyncio.CancelledError:
            raise  # the client is gone
        except BaseException as error:
            self.refuse(turn, error)
            return
        if response is None:
            return
        if "content-encoding" in dict(response.headers):
            turn.answer(response)
        else:
            self.finish(turn, response)


def _stand_back() -> None:
    """Makes the kernel prefer the event loop to this thread whenever the loop has work."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _coded(response: Response, coding: str) -> Response:
    body = encoded(list(response.body), coding)
    headers = [*response.headers, ("content-encoding", coding), ("vary", "accept-encoding")]
    return Response(response.status, (body,), response.content_type, headers)

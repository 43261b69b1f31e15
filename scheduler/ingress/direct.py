"""The door for callers inside the scheduler's own process, such as the methods of its Ray actor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from copy import copy
from typing import Any

from scheduler import traceparent
from scheduler.client.call import infer_call
from scheduler.core.requests import DEFAULT_PRIORITY
from scheduler.daemon.submission import Answer
from scheduler.errors import (
    ExecutionFailed,
    InvalidInput,
    LaxityError,
    error_from_code,
)
from scheduler.ingress.native import NativeDoor
from scheduler.result import Result, Timing
from scheduler.tenants import OWNER
from scheduler.wire import Body, Header, unpack_tensors


class DirectDoor:
    """Takes requests from any thread of this process.

    Args:
        loop: The scheduler's event loop.
        door: The native door, whose admission and intake these requests share.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, door: NativeDoor) -> None:
        """Open at once."""
        self._loop = loop
        self._door = door

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        deadline_ms: float,
        variant: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        weight: float = 1.0,
        accept_late: bool = False,
        exact: bool = False,
    ) -> Result:
        """Runs one inference and waits for it; arguments and errors as in `Client.infer`."""
        future: Future[Result] = Future()
        call = infer_call(
            0,
            future,
            model,
            inputs,
            deadline_ms,
            variant=variant,
            priority=priority,
            weight=weight,
            accept_late=accept_late,
            exact=exact,
            trace=traceparent.current(),
        )
        body = memoryview(b"".join(call.buffers))
        self._loop.call_soon_threadsafe(self._submit, call.header, body, call.deadline_ns, future)
        try:
            return future.result()
        finally:
            del future, call  # the error's traceback leads here: a cycle would keep the tensors

    def _submit(self, header: Header, body: Body, deadline_ns: int, future: Future[Result]) -> None:
        header["budget_ns"] = max(1, deadline_ns - time.monotonic_ns())
        try:
            self._door.check_open()
            submission = self._door.admission.submission(
                header, body, OWNER, lambda answer: _end(future, answer)
            )
            self._door.intake.submit([submission])
        except LaxityError as error:
            future.set_exception(copy(error))  # its own traceback leads here too
        except Exception:
            if not future.done():
                future.set_exception(LaxityError("internal error of the box; see its log"))
            raise  # to the loop, which logs it


def _end(future: Future[Result], answer: Answer) -> None:
    if future.done():  # after an internal error
        return
    if answer.outputs is None or answer.offer is None:
        error = error_from_code(answer.outcome.value, answer.reason, answer.detail)
        future.set_exception(error)
        return
    try:
        outputs = unpack_tensors(*answer.outputs)
    except InvalidInput as error:  # from a worker of another version; its caller must not wait
        future.set_exception(ExecutionFailed(f"the outputs can't be read: {error}"))
        return
    future.set_result(
        Result(
            outputs,
            answer.outcome,
            answer.target,
            answer.offer.variant,
            answer.offer.runtime,
            answer.batch,
            Timing(*answer.timing_ns),
            dict(answer.notes),
        )
    )

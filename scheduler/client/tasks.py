"""Durable tasks as callers see them: by id, from any process, for as long as they are kept.

The questions and waits are written once, as generators; the clients for threads and for asyncio
each carry them out in their own way.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from scheduler.client.arguments import as_float, is_number
from scheduler.client.call import Call, Future, question_call, task_call
from scheduler.errors import InvalidInput, Overloaded, ProtocolError, Unavailable
from scheduler.result import Result

if TYPE_CHECKING:
    from scheduler.client.async_client import AsyncClient
    from scheduler.client.sync_client import Client

ANSWER_S = 10.0
"""How long the box may take to answer a question."""

ACCEPT_S = 30.0
"""How long a box may take to put a task on disk."""

GRACE_S = 2.0
"""How much longer than it was asked to wait the box may take to answer; then it is asked again."""

CONNECT_S = 0.25
"""How much longer the question may wait for a connection."""

_PAUSE_S = 0.2
"""The pause before a task is offered, or its result asked for, again."""

_WAIT_S = 20.0
"""The longest that the box is asked to wait for a result at a time."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a box.

    Attributes:
        kind: The message's type.
        fields: Its other fields.
        timeout_s: How long to wait for the answer.
        grace_s: How much longer to wait once the question has been sent.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = ANSWER_S
    grace_s: float = 0.0

    def call(self, call_id: int, future: Future) -> Call:
        """The message."""
        return question_call(call_id, future, self.kind, self.timeout_s, self.fields, self.grace_s)


class TaskRequest:
    """A task to be accepted by a box; it may be offered repeatedly.

    Args:
        task_id: Its id.
        request: The other arguments of `task_call`.
    """

    def __init__(self, task_id: str, request: tuple[Any, ...]) -> None:
        """Starts not yet offered."""
        self.task_id = task_id
        self._request = request
        self._due_ns: int | None = None

    def call(self, call_id: int, future: Future) -> Call:
        """The message; the first one fixes the task's deadline.

        Raises:
            InvalidInput: An argument is not what it should be; the message says what is.
        """
        call = task_call(call_id, future, self.task_id, ACCEPT_S, *self._request)
        self._due_ns = call.due_ns = self._due_ns or call.due_ns
        return call


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a durable task.

    Attributes:
        id: Its id.
        model: The model that it runs.
        variant: The only variant that it accepts, or None.
        state: `waiting`, `running` or `ended`.
        outcome: How it ended: `completed`, `failed`, `expired` or `cancelled`; None before.
        reason: Why, for people.
        attempts: How often it was run and failed.
        priority: Its priority among waiting tasks, from 0 (first) to 7.
        left_s: The time left to its deadline; negative after it.
        submitted_unix_s: When it was submitted, by the box's wall clock.
        ended_unix_s: When it ended, by the box's wall clock; None before.
    """

    id: str
    model: str
    variant: str | None
    state: str
    outcome: str | None
    reason: str
    attempts: int
    priority: int
    left_s: float
    submitted_unix_s: float
    ended_unix_s: float | None


Plan = Generator[Question | TaskRequest | float, Any, Any]
"""Yields questions, receives their answers or errors, and returns the result. A yielded number is a
pause, in seconds."""


def accept_plan(task_id: str | None, *options: Any) -> Plan:
    """Gets a task accepted, across lost connections and restarts of the box; returns its id.

    Raises:
        LaxityError: The box refused it, or could not take it within 30 s.
    """
    asked = TaskRequest(uuid4().hex if task_id is None else task_id, options)
    end_s = time.monotonic() + ACCEPT_S
    while True:
        try:
            yield asked
        except Unavailable as error:
            if error.detail.get("durable") is False or time.monotonic() >= end_s:
                raise
        else:
            return asked.task_id
        yield _PAUSE_S


def result_plan(task_id: str, timeout_s: float | None) -> Plan:
    """Waits for a task's result, across lost connections and restarts of the box.

    Raises:
        InvalidInput: `timeout_s` is not a number of seconds.
        TimeoutError: The task has not ended within `timeout_s`.
        Unavailable: The box could not be reached within `timeout_s`, or keeps no tasks.
        Overloaded: The box had too much to do to serve this question within `timeout_s`.
    """
    if timeout_s is not None and not (is_number(timeout_s) and timeout_s == timeout_s):
        raise InvalidInput(f"timeout is a number of seconds, or None, not {timeout_s!r}")
    end_s = None if timeout_s is None else time.monotonic() + as_float(timeout_s)
    while True:
        left_s = _WAIT_S if end_s is None else min(_WAIT_S, max(0.0, end_s - time.monotonic()))
        fields = {"task": task_id, "wait_ns": int(left_s * 1e9)}
        try:
            answer = yield Question("task_result", fields, left_s + CONNECT_S, GRACE_S)
        except (Unavailable, Overloaded) as error:
            over = end_s is not None and time.monotonic() >= end_s
            if over or error.detail.get("durable") is False:
                raise
            if isinstance(error, Overloaded):
                yield _PAUSE_S
            continue
        if isinstance(answer, Result):
            return answer
        if end_s is not None and time.monotonic() >= end_s:
            raise TimeoutError(f"task {task_id!r} has not ended within {timeout_s:g} s")


def status_plan(task_id: str) -> Plan:
    """Asks for a task's status."""
    answer = yield Question("task_status", {"task": task_id})
    return status_from(answer)


def cancel_plan(task_id: str) -> Plan:
    """Cancels a task; returns False if it has already ended."""
    answer = yield Question("task_cancel", {"task": task_id})
    return bool(answer["cancelled"])


def forget_plan(task_id: str) -> Plan:
    """Has a task removed; returns False if there is none."""
    answer = yield Question("task_forget", {"task": task_id})
    return bool(answer["forgotten"])


def tasks_plan(count: int, before: str | None) -> Plan:
    """Asks for the newest tasks."""
    fields = {"count": count} if before is None else {"count": count, "before": before}
    answer = yield Question("tasks", fields)
    answer["tasks"] = [status_from(task) for task in answer["tasks"]]
    return answer


def status_from(value: Any) -> TaskStatus:
    """Decodes a task's status.

    Raises:
        ProtocolError: It does not follow the protocol.
    """
    try:
        ended_ms = value["ended_unix_ms"]
        return TaskStatus(
            value["task"],
            value["model"],
            value["variant"],
            value["state"],
            value["outcome"],
            value["reason"],
            value["attempts"],
            value["priority"],
            value["left_ms"] / 1e3,
            value["submitted_unix_ms"] / 1e3,
            None if ended_ms is None else ended_ms / 1e3,
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"a task that does not follow the protocol: {error!r}") from error


class _Handle:
    def __init__(self, client: Any, task_id: str) -> None:
        """Belongs to a client, and knows only the id."""
        self.id = task_id
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def __reduce__(self) -> Any:
        """Refuses pickling: a copy in another process would have no client.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a task can't be pickled: send its id, and use client.task(id) there")


class Task(_Handle):
    """A durable task; any client of the same tenant can access it by its id.

    Attributes:
        id: Its id.
    """

    _client: Client

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the result; may be called again until the result expires.

        Args:
            timeout: In seconds; None waits as long as it takes, across restarts of the box.

        Raises:
            InvalidInput: `timeout` is not a number of seconds.
            TimeoutError: It has not ended within `timeout`.
            TaskNotFound: The box has no such task of this tenant.
            ExecutionFailed: It failed after the allowed attempts.
            DeadlineExpired: Its deadline passed.
            CancelledError: It was cancelled.
            Unavailable: The box could not be reached within `timeout`, or keeps no tasks.
            Overloaded: The box serves too many waits for tasks, or sends too many results, to serve
                this one within `timeout`.
        """
        result: Result = self._client.carry_out(result_plan(self.id, timeout))
        return result

    def status(self) -> TaskStatus:
        """Its status.

        Raises:
            TaskNotFound: The box has no such task of this tenant.
        """
        status: TaskStatus = self._client.carry_out(status_plan(self.id))
        return status

    def cancel(self) -> bool:
        """Cancels it; returns False if it has already ended.

        Raises:
            TaskNotFound: The box has no such task of this tenant.
        """
        return bool(self._client.carry_out(cancel_plan(self.id)))

    def forget(self) -> bool:
        """Removes it and its result from the box; one that has not ended is cancelled.

        Then its id is free for another task.

        Returns:
            False if the box has no such task of this tenant, as when it is forgotten already.
        """
        return bool(self._client.carry_out(forget_plan(self.id)))


class AsyncTask(_Handle):
    """A durable task for asyncio; see `Task`.

    Attributes:
        id: Its id.
    """

    _client: AsyncClient

    async def result(self, timeout: float | None = None) -> Result:
        """Waits for the result; as `Task.result`."""
        result: Result = await self._client.carry_out(result_plan(self.id, timeout))
        return result

    async def status(self) -> TaskStatus:
        """Its status; as `Task.status`."""
        status: TaskStatus = await self._client.carry_out(status_plan(self.id))
        return status

    async def cancel(self) -> bool:
        """Cancels it; as `Task.cancel`."""
        return bool(await self._client.carry_out(cancel_plan(self.id)))

    async def forget(self) -> bool:
        """Removes it and its result; as `Task.forget`."""
        return bool(await self._client.carry_out(forget_plan(self.id)))

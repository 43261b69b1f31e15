"""Answers the native door's messages about durable tasks."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.durable.asker import Asker
from scheduler.durable.desk import FoundTask, TaskDesk
from scheduler.durable.records import Asked, Bounds, Content, checked_id
from scheduler.errors import InvalidInput, LaxityError, Overloaded, TaskConflict, Unavailable
from scheduler.ingress import replies
from scheduler.ingress.admission import Admission
from scheduler.ingress.replies import Say
from scheduler.ingress.request_header import id_of, urgency
from scheduler.tenants import Tenant
from scheduler.wire import Body, Header, checked_budget_ns

_DONE = {"task_cancel": "cancelled", "task_forget": "forgotten"}
"""What the answer to a message says to have happened to its task."""

TASK_MESSAGES = frozenset(("task", "task_result", "task_status", "tasks", *_DONE))

LONGEST_WAIT_NS = 60_000_000_000
"""How long one message may wait for the end of a task."""

MOST_LISTED = 250
"""The most tasks in one list; with the longest ids and reasons, they still fit into a header."""


class TaskDoor:
    """Handles the messages about durable tasks of all connections.

    Args:
        desk: Keeps the tasks.
        admission: Checks their tensors.
        bounds: Limits on what is kept.
        max_deadline_ns: The longest budget of a task.
    """

    def __init__(
        self, desk: TaskDesk, admission: Admission, bounds: Bounds, max_deadline_ns: int
    ) -> None:
        """Open at once."""
        self.desk = desk
        self._admission = admission
        self._bounds = bounds
        self._max_deadline_ns = max_deadline_ns
        self._writing_bytes = 0

    def take(
        self, header: Header, body: Body | None, tenant: Tenant, say: Say, asker: Asker
    ) -> None:
        """Starts to answer a message; `say` is called with the answer, now or later.

        If the asker goes away, what it waits for is given up.

        Raises:
            LaxityError: It is clear at once that the message can't be carried out.
        """
        tenant.check_scope("tasks")
        kind, message_id = header["t"], id_of(header)
        if kind == "task":
            self._take_task(message_id, header, body, tenant, say)
            return
        if kind == "tasks":
            self._list(message_id, header, tenant, say)
            return
        id_ = checked_id(header.get("task"))

        def found(value: Any) -> None:
            if isinstance(value, LaxityError):
                say(replies.refusal(message_id, value), ())
            elif kind in _DONE:
                say(replies.reply(message_id, {"task": id_, _DONE[kind]: value}), ())
            elif kind == "task_status" or value.kept.outcome is None:
                say(replies.reply(message_id, _described(value)), ())
            else:
                say(*_ended(message_id, value), value.left)

        if kind == "task_cancel":
            self.desk.cancel(tenant.name, id_, found)
        elif kind == "task_forget":
            self.desk.forget(tenant.name, id_, found)
        else:
            wait_ns = _wait_ns(header) if kind == "task_result" else None
            self.desk.fetch(tenant.name, id_, wait_ns, found, asker)

    # -- submitting

    def _take_task(
        self, message_id: int, header: Header, body: Body | None, tenant: Tenant, say: Say
    ) -> None:
        given = header.get("task")
        id_ = uuid.uuid4().hex if given is None else checked_id(given)
        if body is None:
            raise Overloaded("tensors that are being received fill the memory for them")
        model, variant, specs = header.get("model"), header.get("variant"), header.get("in")
        asked = Asked(model, variant, header.get("priority"), specs, body)

        def answer(is_new: bool | LaxityError) -> None:
            if isinstance(is_new, LaxityError):
                say(replies.refusal(message_id, is_new), ())
            else:
                say(replies.reply(message_id, {"task": id_, "new": is_new}), ())

        try:
            self._submit(id_, asked, header, tenant, answer)
        except LaxityError as error:
            # The same task may have been accepted earlier, when nothing was wrong with it.
            # Its traceback leads back to this frame, and would keep the tensors in memory.
            refusal = error.with_traceback(None)

            def known(found: bool | LaxityError) -> None:
                if isinstance(found, TaskConflict):
                    answer(found)
                else:
                    answer(False if found is True else refusal)

            self.desk.known(tenant.name, id_, asked, known)

    def _submit(
        self,
        id_: str,
        asked: Asked,
        header: Header,
        tenant: Tenant,
        answer: Callable[[Any], None],
    ) -> None:
        budget_ns = checked_budget_ns(
            header.get("budget_ns"), self._max_deadline_ns, "durable.max_deadline_s"
        )
        _, weight, late = urgency(header)
        priority = tenant.priority(header.get("priority"))
        if weight != 1 or late:
            raise InvalidInput("a durable task has neither weight nor late")
        shape, specs, body = self._admission.item(header, asked.body, tenant)
        size = len(body)
        if self._writing_bytes + size > self._admission.most_bytes:
            raise Overloaded("tasks arrive faster than the disk writes them", {"limit": "disk"})
        release = self._admission.count_in(tenant, size)
        self._writing_bytes += size
        kind = shape.kind
        content = Content(kind.model, kind.variant, specs, body, shape.has_batch, priority, asked)
        share = (
            math.ceil(tenant.queue_share * self._bounds.tasks),
            int(tenant.queue_share * self._bounds.bytes),
        )

        def written(is_new: bool | LaxityError) -> None:
            self._writing_bytes -= size
            release()
            answer(is_new)

        self.desk.submit(tenant.name, id_, content, budget_ns, share, written)

    # -- listing

    def _list(self, message_id: int, header: Header, tenant: Tenant, say: Say) -> None:
        count, before = header.get("count", 100), header.get("before")
        if type(count) is not int or not 0 <= count <= MOST_LISTED:
            raise InvalidInput(f"count is an integer from 0 to {MOST_LISTED}, not {count!r}")

        def listed(found: Any) -> None:
            if isinstance(found, LaxityError):
                say(replies.refusal(message_id, found), ())
                return
            tasks, counts = found
            value = {"tasks": [_described(task) for task in tasks], "counts": counts}
            say(replies.reply(message_id, {**value, **self.desk.status()}), ())

        checked = None if before is None else checked_id(before)
        self.desk.listed(tenant.name, count, checked, listed)


def closed_for_tasks() -> Unavailable:
    """The error of a box that keeps no durable tasks."""
    text = "this box keeps no durable tasks (durable: {enabled: true} would)"
    return Unavailable(text, {"durable": False})


def _wait_ns(header: Header) -> int:
    wait_ns = header.get("wait_ns", 0)
    if type(wait_ns) is not int or not 0 <= wait_ns <= LONGEST_WAIT_NS:
        raise InvalidInput(f"wait_ns is an integer from 0 to {LONGEST_WAIT_NS}, not {wait_ns!r}")
    return wait_ns


def _described(found: FoundTask) -> dict[str, Any]:
    kept = found.kept
    state = "running" if found.running else "waiting"
    return {
        "task": kept.id,
        "model": kept.kind.model,
        "variant": kept.kind.variant,
        "state": state if kept.outcome is None else "ended",
        "outcome": None if kept.outcome is None else kept.outcome.value,
        "reason": kept.reason,
        "attempts": kept.attempts,
        "priority": kept.priority,
        "left_ms": found.left_ms,
        "submitted_unix_ms": found.submitted_unix_ms,
        "ended_unix_ms": found.ended_unix_ms,
    }


def _ended(message_id: int, found: FoundTask) -> tuple[Header, Sequence[Any]]:
    if found.result is not None:
        header, outputs = found.result
        return {"t": "result", "id": message_id, **header}, (outputs,)
    outcome = found.kept.outcome
    assert outcome is not None
    return replies.failure(
        message_id, outcome.value, found.kept.reason, {"task": found.kept.id}
    ), ()

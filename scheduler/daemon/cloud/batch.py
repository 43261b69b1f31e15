"""A batch that was sent to a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.commands import Dispatch
from scheduler.daemon.cloud.endpoint import Inference
from scheduler.daemon.cloud.tensors import CloudModel, stacked
from scheduler.daemon.submission import Submission

_LEAST_TIMEOUT_S = 1e-3


@dataclass(slots=True)
class SentBatch:
    """A batch that is at a server, or on its way.

    Attributes:
        dispatch: The command that it carries out.
        requests: Those in it.
        sent_ns: When it was sent.
        in_flight: How many batches were there then, itself included.
        patience_ns: How long it should take at most, going by what others took.
        task: Carries it.
        timer: Goes off when it is overdue.
    """

    dispatch: Dispatch
    requests: Sequence[Submission]
    sent_ns: int
    in_flight: int
    patience_ns: int
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> int:
        """That of the run."""
        return self.dispatch.run_id

    @property
    def size_bytes(self) -> int:
        """Its tensors, as the core counts them."""
        return sum([len(each.body) for each in self.requests])

    @property
    def deadline_ns(self) -> int:
        """When the last of its requests has to be answered."""
        return max([each.deadline_ns for each in self.requests])

    def timeout_s(self, late_s: float) -> float:
        """How long an answer is waited for: at least `late_s` if somebody accepts a late one."""
        left_s = (self.deadline_ns - self.sent_ns) / 1e9
        if any(each.accept_late for each in self.requests):
            return max(left_s, late_s)
        return max(left_s, _LEAST_TIMEOUT_S)

    def inference(self, model: CloudModel, timeout_s: float, back_ns: int) -> Inference:
        """What is asked of the server, whose answer needs so long for the way back."""
        wanted = [spec.name for spec in model.card.signature.outputs]
        there_s = timeout_s - min(back_ns / 1e9, timeout_s / 2)
        inputs = stacked(model, self.requests)
        return Inference(model.remote, model.version, inputs, wanted, timeout_s, there_s)

    def stop(self) -> None:
        """Waits no longer for it."""
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

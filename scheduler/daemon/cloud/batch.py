"""A batch sent to a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.commands import Dispatch
from scheduler.daemon.cloud.endpoint import Inference, Inferred
from scheduler.daemon.cloud.tensors import CloudModel, stacked, with_shrunk
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.shrinking import Shrunk

_LEAST_TIMEOUT_S = 1e-3


@dataclass(slots=True)
class SentBatch:
    """A batch in flight to or at a server.

    Attributes:
        dispatch: The command that it carries out.
        requests: Its requests.
        sent_ns: When it was sent.
        in_flight: How many batches were in flight then, including itself.
        patience_ns: How long it should take at most, judging by earlier batches.
        shrunk: Its inputs in a smaller form; None if they are sent unchanged.
        task: Sends it and waits for the answer; None once it is stopped.
        timer: Fires when it is overdue.
    """

    dispatch: Dispatch
    requests: Sequence[Submission]
    sent_ns: int
    in_flight: int
    patience_ns: int = 0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    shrunk: Shrunk | None = None

    @property
    def id(self) -> int:
        """The id of the run."""
        return self.dispatch.run_id

    @property
    def size_bytes(self) -> int:
        """The size of its tensors, as the core counts them."""
        return sum([len(each.body) for each in self.requests])

    @property
    def deadline_ns(self) -> int:
        """The latest deadline of its requests."""
        return max([each.deadline_ns for each in self.requests])

    def timeout_s(self, late_s: float) -> float:
        """How long to wait for an answer: at least `late_s` if a caller accepts late results."""
        left_s = (self.deadline_ns - self.sent_ns) / 1e9
        if any(each.accept_late for each in self.requests):
            return max(left_s, late_s)
        return max(left_s, _LEAST_TIMEOUT_S)

    async def shrink(self, model: CloudModel) -> None:
        """Shrinks the inputs if the command says so; inputs that don't fit are sent unchanged."""
        if self.dispatch.form:
            self.shrunk = await model.shrinking.shrunk(self.dispatch.form, self.requests)

    def learn(self, model: CloudModel, inferred: Inferred) -> tuple[int, int]:
        """Records the result of shrinking; returns bytes sent and ns spent on it at both ends."""
        if self.shrunk is None:
            return self.size_bytes, 0
        work_ns = self.shrunk.took_ns + inferred.restore_ns
        model.shrinking.learn(self.dispatch.form, self.size_bytes, inferred.sent, work_ns)
        return inferred.sent, work_ns

    def inference(self, model: CloudModel, timeout_s: float, back_ns: int) -> Inference:
        """The call to the server, whose answer takes `back_ns` to come back."""
        if self.shrunk is not None:
            timeout_s = max(_LEAST_TIMEOUT_S, timeout_s - self.shrunk.took_ns / 1e9)
        wanted = [spec.name for spec in model.card.signature.outputs]
        there_s = timeout_s - min(back_ns / 1e9, timeout_s / 2)
        inputs = stacked(model, self.requests)
        if self.shrunk is not None:
            inputs = with_shrunk(inputs, self.shrunk)
        exact = model.knows_exact and self.requests[0].kind.exact
        trace = next((each.trace for each in self.requests if each.trace), "")
        return Inference(
            model.remote, model.version, inputs, wanted, timeout_s, there_s, exact, trace
        )

    def stop(self) -> None:
        """Stops waiting for the batch."""
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()
            self.task = None  # where it was cancelled leads back here, and would keep the tensors

"""A door process's connection to the scheduler: sends requests and questions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from scheduler.client.call import Call, infer_call, question_call
from scheduler.client.connection import Overhead
from scheduler.client.exchange import Exchange
from scheduler.client.late_endings import in_callers_terms
from scheduler.core.names import or_which
from scheduler.core.requests import DEFAULT_PRIORITY
from scheduler.daemon.asyncio_tasks import heed
from scheduler.errors import (
    SHUTTING_DOWN,
    DeadlineExpired,
    DeadlineInfeasible,
    ModelNotFound,
    Overloaded,
)
from scheduler.ingress.oip.deadlines import LEAST_MS
from scheduler.ingress.oip.request import Terms
from scheduler.ingress.oip.snapshot import ModelInfo, Snapshot
from scheduler.result import Result
from scheduler.tenants import OWNER, Tenant

_ANSWER_S = 5.0
_FRESH_S = 0.25
"""How old a snapshot of the box may be; callers that ask at the same time share one."""

_KNOWN_S = 5.0
"""How old a signature may be that a request is read with; the next ones get a newer one."""

_HALF_TICK_MS = 0.5
_MOST_ALLOWANCE = 1 / 8
"""The largest part of a deadline that the door keeps for itself."""

OnEnd = Callable[["Result | BaseException"], None]


class _Reply:
    """The future of one call; it reports its end at once, not on the loop's next iteration."""

    __slots__ = ("_on_end",)

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end: OnEnd | None = on_end

    def _end(self, answer: Result | BaseException) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(answer)

    def set_result(self, result: Any, /) -> None:
        self._end(result)

    def set_exception(self, exception: Any, /) -> None:
        self._end(exception)

    def cancel(self) -> bool:
        self._end(asyncio.CancelledError(SHUTTING_DOWN))
        return True


class Box:
    """The connection to the scheduler.

    Args:
        url: The scheduler's socket for doors.

    Attributes:
        way_out: Time from a request's end until its answer has left the door. Doors for which it
            matters observe it.
    """

    def __init__(self, url: str) -> None:
        """Connects with the first request or question."""
        self.way_out = Overhead(0)
        self._loop = asyncio.get_running_loop()
        self._exchange = Exchange(self._loop, url, None)
        self._ids = count(1)
        self._signatures: dict[str, ModelInfo] = {}
        self._snapshot: asyncio.Task[Snapshot] | None = None
        self._snapshot_s = 0.0
        self._resting: dict[str, tuple[int, Overloaded]] = {}

    def call(
        self,
        model: str,
        inputs: Mapping[str, Any],
        variant: str | None,
        terms: Terms,
        on_end: OnEnd,
    ) -> Call:
        """Builds the request for one item, for `start`, after which `on_end` is called once.

        Raises:
            InvalidInput: An argument is wrong.
            Overloaded: The scheduler has told this tenant to wait, and that time is not over.
        """
        tenant, priority = terms.tenant, terms.priority
        self.check_rested(tenant)

        def ended(answer: Result | BaseException) -> None:
            if isinstance(answer, Overloaded):
                self._note_rest(tenant.name, answer)
            on_end(self._in_callers_terms(answer, terms.given_ms, call))

        call = infer_call(
            next(self._ids),
            _Reply(ended),
            model,
            inputs,
            max(terms.deadline_ms - self._allowance_ms(terms.deadline_ms), LEAST_MS),
            variant=variant,
            priority=DEFAULT_PRIORITY if priority is None else tenant.priority(priority),
            accept_late=terms.accept_late,
            exact=terms.exact,
            trace=terms.trace,
        )
        call.header["tenant"] = tenant.name
        return call

    def _in_callers_terms(
        self, answer: Result | BaseException, deadline_ms: float, call: Call
    ) -> Result | BaseException:
        """An answer that counts with the caller's deadline, part of which the door kept."""
        if isinstance(answer, DeadlineInfeasible):
            return in_callers_terms(answer, self._deadline_ms)
        if not isinstance(answer, DeadlineExpired):
            return answer
        if not call.sends:
            given = f"of {deadline_ms:g} ms " if deadline_ms > LEAST_MS else ""
            return DeadlineInfeasible(
                f"the deadline {given}is over before the scheduler can be asked"
            )
        if "budget_ms" not in answer.detail:  # the scheduler's
            return answer
        return DeadlineExpired(
            f"the deadline of {deadline_ms:g} ms passed before the scheduler's answer came",
            {"budget_ms": deadline_ms},
        )

    def check_rested(self, tenant: Tenant) -> None:
        """Checks that the scheduler has not told this tenant to wait.

        Raises:
            Overloaded: It has, and that time is not over.
        """
        if tenant.name not in self._resting:
            return
        until_ns, answer = self._resting[tenant.name]
        left_ns = until_ns - time.monotonic_ns()
        if left_ns > 0:
            raise Overloaded(str(answer), {**answer.detail, "retry_after_ms": left_ns / 1e6})
        del self._resting[tenant.name]

    def _allowance_ms(self, deadline_ms: float) -> float:
        """How much of a deadline to keep for the door, so that the caller has the answer in time.

        The way in can't be measured, so it is assumed to take as long as the way out. The event
        loop's timers have millisecond resolution, and are late by half a millisecond on average.
        """
        return min(2 * self.way_out.ns / 1e6 + _HALF_TICK_MS, _MOST_ALLOWANCE * deadline_ms)

    def _deadline_ms(self, budget_ms: float) -> float:
        """The deadline of which the door leaves this budget."""
        return budget_ms + self._allowance_ms(budget_ms / (1 - _MOST_ALLOWANCE))

    def start(self, calls: Sequence[Call]) -> None:
        """Sends requests together, so that they can share a batch."""
        self._exchange.start(*calls)

    def cancel(self, call_id: int) -> None:
        """Cancels a request."""
        self._exchange.cancel(call_id)

    async def ask(self, kind: str, tenant: Tenant | None = None, **fields: Any) -> Any:
        """Asks the box a question or gives it an administrator's order; returns its answer.

        Raises:
            LaxityError: The box answered with an error.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        call = question_call(next(self._ids), future, kind, _ANSWER_S)
        call.header.update(fields)
        if tenant is not None:
            call.header["tenant"] = tenant.name
        self._exchange.start(call)
        return await future

    async def snapshot(self) -> Snapshot:
        """The state of the box.

        Raises:
            Unavailable: The box does not answer.
        """
        return await asyncio.shield(self._looked(_FRESH_S))

    def _looked(self, most_s: float) -> asyncio.Task[Snapshot]:
        """The last look at the box, or a new one if that began longer ago."""
        now_s = time.monotonic()
        if self._snapshot is None or now_s - self._snapshot_s > most_s:
            self._snapshot_s = now_s
            self._snapshot = self._loop.create_task(self._look())
            self._snapshot.add_done_callback(heed)  # whoever waits for it is told as well
        return self._snapshot

    def known(self, model: str, variant: str = "") -> ModelInfo | None:
        """A model's signature if it was looked up before.

        Another box may serve other files by now, and so may this one if it could not serve those
        before; so an old signature is given once more, and looked up again meanwhile.

        Returns None also for an unknown variant, because targets beyond the box may add variants.
        """
        self._looked(_KNOWN_S)
        info = self._signatures.get(model)
        return info if info is None or not variant or variant in info.variants else None

    async def model(self, name: str, variant: str = "", tenant: Tenant = OWNER) -> ModelInfo:
        """The current state of a model.

        Raises:
            ModelNotFound: There is no such model, the tenant may not use it, it can't be served, or
                it has no such variant.
            Unavailable: The box does not answer.
        """
        tenant.check_model(name)
        snapshot = await self.snapshot()
        info = snapshot.models.get(name)
        if info is None:
            which = or_which(name, filter(tenant.sees, snapshot.models))
            raise ModelNotFound.among(snapshot.problems, name, which)
        if variant and variant not in info.variants:
            raise ModelNotFound(
                f"model {name!r} has no version {variant!r}; it has {', '.join(info.variants)}"
            )
        return info

    def changed(self) -> None:
        """Discards the snapshot, because the box has changed."""
        self._snapshot = None

    def close(self) -> None:
        """Ends the requests in flight."""
        self._exchange.close()

    async def _look(self) -> Snapshot:
        models, status = await asyncio.gather(self.ask("models"), self.ask("status"))
        found = Snapshot.of(models, status)
        self._signatures = found.models
        return found

    def _note_rest(self, tenant: str, answer: Overloaded) -> None:
        """Remembers until when the scheduler would refuse a tenant, so that the door does so."""
        after_ms = answer.detail.get("retry_after_ms")
        if answer.detail.get("tenant") == tenant and isinstance(after_ms, int | float):
            self._resting[tenant] = time.monotonic_ns() + int(after_ms * 1e6), answer

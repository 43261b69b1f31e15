"""The scheduler as a door in another process sees it: requests, questions, and what it knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from scheduler.client.call import Call, infer_call, question_call
from scheduler.client.connection import Overhead
from scheduler.client.exchange import Exchange
from scheduler.errors import DeadlineExpired, DeadlineInfeasible, ModelNotFound, Overloaded
from scheduler.ingress.oip.deadlines import LEAST_MS
from scheduler.result import Result
from scheduler.tenants import Tenant

_ANSWER_S = 5.0
_FRESH_S = 0.25
"""How old an answer about the box may be; many callers who ask at once share one."""

_HALF_TICK_MS = 0.5
_MOST_ALLOWANCE = 1 / 8
"""The part of a deadline that the door takes off at most."""

OnEnd = Callable[["Result | BaseException"], None]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the box.

    Attributes:
        name: What requests call it.
        batched: Whether its tensors have a batch dimension before the shapes.
        max_batch: How many items may share a batch.
        inputs: Maps of name, dtype and shape, in which None is a free dimension.
        outputs: The same.
        variants: The targets that can run each variant.
        loaded: Whether it takes requests.
    """

    name: str
    batched: bool
    max_batch: int
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    variants: dict[str, tuple[str, ...]]
    loaded: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the box was like a moment ago.

    Attributes:
        models: By name.
        problems: Why other models of the repository are not served.
        up: The targets that are up.
        draining: Whether it admits nothing more.
        policy: What decides.
    """

    models: dict[str, ModelInfo]
    problems: tuple[tuple[str, str], ...]
    up: frozenset[str]
    draining: bool
    policy: dict[str, Any]

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return bool(self.up) and not self.draining

    def model_ready(self, info: ModelInfo, variant: str = "") -> bool:
        """Whether a model, or one variant of it, can be served."""
        named = {variant: info.variants[variant]} if variant else info.variants
        return self.ready and info.loaded and any(set(ids) & self.up for ids in named.values())


class _Reply:
    """The future of one call, which tells its end at once rather than on the loop's next turn."""

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

    def done(self) -> bool:
        return self._on_end is None

    def cancel(self) -> bool:
        self._end(asyncio.CancelledError("the box is shutting down"))
        return True


class Box:
    """The connection to the scheduler.

    Args:
        url: Its socket for doors.

    Attributes:
        way_out: What the door takes from an end until the caller has been told; observed by the
            door, where it is worth it.
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
        deadline_ms: float,
        variant: str | None,
        priority: int | None,
        accept_late: bool,
        exact: bool,
        tenant: Tenant,
        on_end: OnEnd,
    ) -> Call:
        """A request for one item, for `start`; `on_end` is called once from then on.

        Raises:
            InvalidInput: An argument is not what it should be.
            Overloaded: The scheduler has said that this tenant must wait, and it still must.
        """
        self.check_rested(tenant)

        def ended(answer: Result | BaseException) -> None:
            if isinstance(answer, Overloaded):
                self._note_rest(tenant.name, answer)
            elif isinstance(answer, DeadlineExpired) and not call.sends:
                given = f"of {deadline_ms:g} ms " if deadline_ms > LEAST_MS else ""
                answer = DeadlineInfeasible(
                    f"the deadline {given}is over before the scheduler can be asked"
                )
            on_end(answer)

        call = infer_call(
            next(self._ids),
            _Reply(ended),
            model,
            inputs,
            max(deadline_ms - self._allowance_ms(deadline_ms), LEAST_MS),
            variant=variant,
            priority=tenant.priority(priority),
            accept_late=accept_late,
            exact=exact,
        )
        call.header["tenant"] = tenant.name
        if priority is None:
            call.header.pop("priority", None)
        return call

    def check_rested(self, tenant: Tenant) -> None:
        """Nothing, unless the scheduler has said that this tenant must wait, and it still must.

        Raises:
            Overloaded: So it is.
        """
        if tenant.name not in self._resting:
            return
        until_ns, answer = self._resting[tenant.name]
        left_ns = until_ns - time.monotonic_ns()
        if left_ns > 0:
            raise Overloaded(str(answer), {**answer.detail, "retry_after_ms": left_ns / 1e6})
        del self._resting[tenant.name]

    def _allowance_ms(self, deadline_ms: float) -> float:
        """What of a deadline belongs to the door, so that its caller hears an answer by then.

        The way in can't be seen: it is taken to be as long as the way out. And the event loop
        keeps times to the millisecond, late by half of one at the mean.
        """
        return min(2 * self.way_out.ns / 1e6 + _HALF_TICK_MS, _MOST_ALLOWANCE * deadline_ms)

    def start(self, calls: Sequence[Call]) -> None:
        """Sends requests, all at once, so that they can share a batch."""
        self._exchange.start(*calls)

    def cancel(self, call_id: int) -> None:
        """Nobody waits for that any more."""
        self._exchange.cancel(call_id)

    async def ask(self, kind: str, tenant: Tenant | None = None, **fields: Any) -> Any:
        """The box's answer to a question, or to an administrator's order.

        Raises:
            LaxityError: What it said instead.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        call = question_call(next(self._ids), future, kind, _ANSWER_S)
        call.header.update(fields)
        if tenant is not None:
            call.header["tenant"] = tenant.name
        self._exchange.start(call)
        return await future

    async def snapshot(self) -> Snapshot:
        """What the box is like.

        Raises:
            Unavailable: It does not answer.
        """
        now_s = time.monotonic()
        if self._snapshot is None or now_s - self._snapshot_s > _FRESH_S:
            self._snapshot_s = now_s
            self._snapshot = self._loop.create_task(self._look())
        return await asyncio.shield(self._snapshot)

    def known(self, model: str, variant: str = "") -> ModelInfo | None:
        """A model's signature, where it has been looked up before; it does not change.

        A variant that is asked for has to be known as well: targets beyond the box bring others.
        """
        info = self._signatures.get(model)
        return info if info is None or not variant or variant in info.variants else None

    async def model(self, name: str, variant: str = "") -> ModelInfo:
        """A model as it is now.

        Raises:
            ModelNotFound: There is no such model, it can't be served, or has no such variant.
            Unavailable: The box does not answer.
        """
        snapshot = await self.snapshot()
        info = snapshot.models.get(name)
        if info is None:
            raise ModelNotFound.among(snapshot.problems, name)
        if variant and variant not in info.variants:
            raise ModelNotFound(
                f"model {name!r} has no version {variant!r}; it has {', '.join(info.variants)}"
            )
        return info

    def changed(self) -> None:
        """What was known of the box no longer holds."""
        self._snapshot = None

    def close(self) -> None:
        """Ends what is in flight."""
        self._exchange.close()

    async def _look(self) -> Snapshot:
        models, status = await asyncio.gather(self.ask("models"), self.ask("status"))
        found = Snapshot(
            {described["name"]: _info(described) for described in models["models"]},
            tuple((p["model"], p["reason"]) for p in models["problems"]),
            frozenset(target["id"] for target in status["targets"] if target["up"]),
            status["draining"],
            status["policy"],
        )
        self._signatures = found.models
        return found

    def _note_rest(self, tenant: str, answer: Overloaded) -> None:
        """Refuses a tenant here for as long as the scheduler would, and spares it the asking."""
        after_ms = answer.detail.get("retry_after_ms")
        if answer.detail.get("tenant") == tenant and isinstance(after_ms, int | float):
            self._resting[tenant] = time.monotonic_ns() + int(after_ms * 1e6), answer


def _info(described: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(
        described["name"],
        described["batched"],
        described["max_batch"],
        tuple(described["inputs"]),
        tuple(described["outputs"]),
        {
            variant["name"]: tuple(target["target"] for target in variant["targets"])
            for variant in described["variants"]
        },
        described["loaded"],
    )

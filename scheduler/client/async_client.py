"""The Python API for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from copy import copy
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from scheduler import traceparent
from scheduler.address import default_url, parse_address
from scheduler.client.arguments import (
    Options,
    checked_timeout_s,
    milliseconds,
    no_task_id,
    token_to_send,
)
from scheduler.client.call import infer_call
from scheduler.client.exchange import Exchange
from scheduler.client.frames import async_results, check_map
from scheduler.client.input_names import InputNames, question_of_frame
from scheduler.client.tasks import (
    ANSWER_S,
    AsyncTask,
    Plan,
    Question,
    TaskRequest,
    accept_plan,
    tasks_plan,
)
from scheduler.client.tls import FilePath, tls_for
from scheduler.core.requests import DEFAULT_PRIORITY
from scheduler.errors import LaxityError
from scheduler.result import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

CONNECT_TIMEOUT_S = 5.0
CONCURRENCY = 64


class AsyncFuture(asyncio.Future[Any]):
    """What `AsyncClient.submit` returns; cancelling it cancels the request on the box."""

    def __init__(self, client: AsyncClient, exchange: Exchange, call_id: int) -> None:
        """Belongs to one call on a client's exchange."""
        super().__init__(loop=exchange.loop)
        self._client = client  # a client that nothing refers to closes, and cancels this
        self._exchange = exchange
        self._call_id = call_id

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancels the request; returns False if it has already ended."""
        if not super().cancel(msg):
            return False
        self._exchange.cancel(self._call_id)
        return True


class AsyncClient:
    """A connection to a laxity daemon, for use in one event loop.

    It connects on entering `async with`, or with the first request. It reopens a lost connection
    and resends requests in flight while their budgets last.

    Input arrays are not copied: do not change one before its result has arrived.

    It closes at the end of `async with`, on `close`, or when it and its futures are garbage
    collected.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: FilePath | None = None,
        cert: FilePath | None = None,
        key: FilePath | None = None,
    ) -> None:
        """Does not connect yet.

        Args:
            url: `unix:///path`, `tcp://host:port` or `tls://host:port`; the default is
                `LAXITY_URL`, or the local box.
            token: The daemon's token; the default is `LAXITY_TOKEN`.
            ca: For `tls`, the file with the certificate of the CA that signed the box's; the
                default is `LAXITY_CA`, or the CAs that the system trusts.
            cert: For `tls`, the file of the client's own certificate, if the box requires one; the
                default is `LAXITY_CERT` with `LAXITY_KEY`.
            key: The file of the certificate's key, unless `cert` contains both.

        Raises:
            AddressError: The URL has none of these forms.
            InvalidInput: The token is not text.
            ValueError: Such a file is given for `tcp`, or `key` without `cert`.
        """
        self.url = url or default_url()
        self._tls = tls_for(parse_address(self.url), ca, cert, key)
        self._token = token_to_send(token)
        self._ids = count(1)
        self._exchange: Exchange | None = None
        self._input_names = InputNames()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    def __reduce__(self) -> Any:
        """Refuses pickling: a copy in another process would not have the connection.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a client can't be pickled: make one in each process")

    async def __aenter__(self) -> AsyncClient:
        """Connects within 5 seconds."""
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        await self.close()

    def exchange(self) -> Exchange:
        """The exchange that carries the calls; the first use binds it to the running loop.

        Raises:
            RuntimeError: The client is closed, or was first used in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._exchange is None:
            self._exchange = Exchange(loop, self.url, self._token, self._tls)
            weakref.finalize(self, _let_go, self._exchange).atexit = False
        if self._exchange.closed:
            raise RuntimeError("the client is closed")
        if self._exchange.loop is not loop:
            raise RuntimeError(
                "this client was first used in another event loop, and belongs to it: make one in "
                "each, such as with `async with AsyncClient() as client` inside of asyncio.run"
            )
        return self._exchange

    async def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Keeps trying to connect for `timeout_s`.

        Raises:
            InvalidInput: That is not a number of seconds, above 0 and at most a day.
            Unavailable: No daemon answered at the URL.
            Unauthorized: The token is missing or wrong.
            ProtocolError: The server speaks another version, or is no laxity daemon.
        """
        await self.exchange().connect(checked_timeout_s(timeout_s))

    @overload
    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        deadline_s: float | None = None,
        variant: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        weight: float = 1.0,
        accept_late: bool = False,
        exact: bool = False,
        durable: Literal[False] = False,
    ) -> asyncio.Future[Result]: ...

    @overload
    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        deadline_s: float | None = None,
        variant: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        durable: Literal[True],
        id: str | None = None,
    ) -> Coroutine[Any, Any, AsyncTask]: ...

    @overload
    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        deadline_s: float | None = None,
        variant: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        durable: bool,
        id: str | None = None,
    ) -> asyncio.Future[Result] | Coroutine[Any, Any, AsyncTask]: ...

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        deadline_s: float | None = None,
        variant: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        weight: float = 1.0,
        accept_late: bool = False,
        exact: bool = False,
        durable: bool = False,
        id: str | None = None,
    ) -> asyncio.Future[Result] | Coroutine[Any, Any, AsyncTask]:
        """Sends a request; the deadline counts from this call.

        Arguments and errors are those of `scheduler.Client.submit`. With `durable`, await the task:
        it is returned once it is on the box's disk.
        """
        exchange = self.exchange()
        if deadline_s is not None:
            deadline_ms = milliseconds(deadline_s, deadline_ms, durable)
        if durable:
            options = (deadline_ms, variant, priority, weight, accept_late)
            return self._submit_task(accept_plan(id, model, inputs, *options))
        no_task_id(id)
        call_id = next(self._ids)
        future = AsyncFuture(self, exchange, call_id)
        exchange.start(
            infer_call(
                call_id,
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
        )
        return future

    async def _submit_task(self, plan: Plan) -> AsyncTask:
        return AsyncTask(self, await self.carry_out(plan))

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """Sends a request and waits for its result; options are those of `submit`."""
        submit: Callable[..., Any] = self.submit
        answer = await submit(model, inputs, deadline_ms=deadline_ms, **options)
        result: Result = await answer.result() if isinstance(answer, AsyncTask) else answer
        return result

    @overload
    def map(
        self,
        model: str,
        frames: Iterable[Any] | AsyncIterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[False] = False,
        **options: Unpack[Options],
    ) -> AsyncIterator[Result]: ...

    @overload
    def map(
        self,
        model: str,
        frames: Iterable[Any] | AsyncIterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool,
        **options: Unpack[Options],
    ) -> AsyncIterator[Result | Exception]: ...

    def map(
        self,
        model: str,
        frames: Iterable[Any] | AsyncIterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> AsyncIterator[Result | Exception]:
        """Results of many frames, in order; see `scheduler.Client.map`.

        Frames may come from an asynchronous iterable; results are yielded while waiting for the
        next frame.
        """
        check_map(frames, concurrency, options)
        ask: Callable[..., Any] = self.infer if options.get("durable") else self.submit

        async def send(frame: Any) -> asyncio.Future[Any]:
            inputs = frame
            future: asyncio.Future[Any]
            try:
                if not isinstance(frame, Mapping):
                    inputs = {await self._input_name(model, deadline_ms, options): frame}
                answer = ask(model, inputs, deadline_ms=deadline_ms, **options)
                future = asyncio.ensure_future(answer)
            except LaxityError as error:  # Reported in order, after earlier frames.
                future = asyncio.get_running_loop().create_future()
                future.set_exception(copy(error))
            return future

        return async_results(frames, send, concurrency, return_exceptions)

    async def models(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The models of the box, as `{"models": [...], "problems": [...]}`; see docs/protocol.md.

        Raises:
            Unavailable: No answer within `timeout_s`.
        """
        models: dict[str, Any] = await self._ask("models", timeout_s)
        return models

    async def status(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The state of the box: targets, queues, outcome counts; docs/protocol.md has its fields.

        Raises:
            Forbidden: The tenant does not have the scope `metrics`.
            Unavailable: No answer within `timeout_s`.
        """
        status: dict[str, Any] = await self._ask("status", timeout_s)
        return status

    async def statistics(self, timeout_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """How the requests for each variant ended since the box started."""
        counted: list[dict[str, Any]] = await self._ask("statistics", timeout_s)
        return counted

    def task(self, id: str) -> AsyncTask:
        """A durable task that was submitted earlier; see `scheduler.Client.task`."""
        return AsyncTask(self, id)

    async def tasks(self, count: int = 100, before: str | None = None) -> dict[str, Any]:
        """The durable tasks of this caller; see `scheduler.Client.tasks`."""
        answer: dict[str, Any] = await self.carry_out(tasks_plan(count, before))
        return answer

    async def carry_out(self, plan: Plan) -> Any:
        """Carries out a plan's steps, and returns its result."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = await self._take(step)
                except LaxityError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as done:
            return done.value

    async def _take(self, step: Question | TaskRequest | float) -> Any:
        if isinstance(step, float):
            return await asyncio.sleep(step)
        # Without a name: its error's traceback leads here, and a cycle would keep the tensors.
        return await self._asked(step)

    def _asked(self, step: Question | TaskRequest) -> AsyncFuture:
        exchange = self.exchange()
        call_id = next(self._ids)
        future = AsyncFuture(self, exchange, call_id)
        exchange.start(step.call(call_id, future))
        return future

    async def close(self) -> None:
        """Cancels requests in flight and closes the connection.

        Raises:
            RuntimeError: The client was first used in another event loop.
        """
        if self._exchange is None:
            return
        if not self._exchange.closed:
            self.exchange().close()
        await self._exchange.wait_closed()

    async def _ask(self, kind: str, timeout_s: float) -> Any:
        return await self._take(Question(kind, timeout_s=timeout_s))

    async def _input_name(self, model: str, deadline_ms: Any, options: Options) -> str:
        name = self._input_names.known(model, self.exchange().losses)
        if name is not None:
            return name
        asked = question_of_frame(deadline_ms, options)
        return self._input_names.learn(model, await self._take(asked))


def _let_go(exchange: Exchange) -> None:
    """Closes an exchange from any thread: a client is collected where its last reference ends."""
    with contextlib.suppress(RuntimeError):  # a closed loop has closed its connections
        exchange.loop.call_soon_threadsafe(exchange.close)

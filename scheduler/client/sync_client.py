"""The Python API for threads: plain calls to an event loop on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
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
from scheduler.client.async_client import CONCURRENCY, CONNECT_TIMEOUT_S
from scheduler.client.call import infer_call
from scheduler.client.exchange_thread import ExchangeThread
from scheduler.client.frames import check_map, results
from scheduler.client.input_names import InputNames, question_of_frame
from scheduler.client.request_future import RequestFuture, check_may_wait
from scheduler.client.tasks import (
    ANSWER_S,
    Plan,
    Question,
    Task,
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

Submit = Callable[..., "Future[Result] | Task"]
"""`Client.submit` where it is not known statically whether the request is durable."""


class Client:
    """A connection to a laxity daemon, for any number of threads in one process.

    Callbacks of its futures run on the thread that receives its answers, so they may submit but not
    wait. A lost connection is reopened, and requests in flight are resent while their budgets last.
    Input arrays are not copied: do not change one before its result has arrived.

    It closes at the end of `with`, on `close`, or when it and its futures are garbage collected.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: FilePath | None = None,
        cert: FilePath | None = None,
        key: FilePath | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Connects.

        Args:
            url: `unix:///path`, `tcp://host:port` or `tls://host:port`; the default is
                `LAXITY_URL`, or the local box.
            token: The daemon's token; the default is `LAXITY_TOKEN`.
            ca: For `tls`, the file with the certificate of the CA that signed the box's; the
                default is `LAXITY_CA`, or the CAs that the system trusts.
            cert: For `tls`, the file of the client's own certificate, if the box requires one; the
                default is `LAXITY_CERT` with `LAXITY_KEY`.
            key: The file of the certificate's key, unless `cert` contains both.
            connect_timeout_s: How long to keep trying.

        Raises:
            AddressError: The URL has none of these forms.
            InvalidInput: `connect_timeout_s` is not a number of seconds, above 0 and at most a day,
                or the token is not text.
            ValueError: Such a file is given for `tcp`, or `key` without `cert`.
            Unavailable: No daemon answered at the URL.
            Unauthorized: The token is missing or wrong.
            ProtocolError: The server speaks another version, or is no laxity daemon.
        """
        self.url = url or default_url()
        # Before there is an event loop to close.
        tls = tls_for(parse_address(self.url), ca, cert, key)
        timeout_s = checked_timeout_s(connect_timeout_s, "connect_timeout_s")
        self._ids = count(1)
        self._input_names = InputNames()
        self._running = ExchangeThread(self, self.url, token_to_send(token), tls)
        self._exchange, self._thread = self._running.exchange, self._running.thread
        try:
            self._running.connect(timeout_s)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __reduce__(self) -> Any:
        """Refuses pickling: a copy in another process would not have the connection.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a client can't be pickled: make one in each process")

    def __enter__(self) -> Client:
        """The client, connected."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

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
    ) -> Future[Result]: ...

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
    ) -> Task: ...

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
    ) -> Future[Result] | Task: ...

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
    ) -> Future[Result] | Task:
        """Sends a request; the deadline counts from this call.

        Args:
            model: The model's name.
            inputs: Array-likes by input name: exactly one item, with the shapes and dtypes of
                `models()`. With a leading batch dimension of 1, the outputs have it too; only
                models that are `batched` take one.
            deadline_ms: When the result must have arrived, in milliseconds from now; at most a day.
            deadline_s: The same in seconds; one of the two is required.
            variant: The variant that must run; by default the policy chooses.
            priority: RFC 9218 urgency, 0 (first) to 7.
            weight: The relative value of a result in time among requests of the same priority, from
                1e-9 to 1e9.
            accept_late: Also deliver a result that comes after the deadline, as `late`. A request
                that has not started by then still ends with `DeadlineExpired`.
            exact: Require a result of exactly these inputs: no lossy compression on a slow link and
                no cached answer to a nearly equal frame, even if the model's owner allows them.
                Durable tasks are always exact.
            durable: Return once the box has stored the request on disk. It runs below all other
                requests, until its deadline at the latest, which may be as far away as the box
                allows. It takes neither weight nor accept_late.
            id: The id of a durable task. Submitting it again with the same id gives the same task.
                By default it gets a new id.

        Returns:
            A durable task, whose result can be fetched by its id from any process. Otherwise a
            future of the result, which fails at the deadline at the latest (unless `accept_late`),
            with `DeadlineInfeasible`, `Overloaded`, `DeadlineExpired`, `Unavailable`,
            `ExecutionFailed`, `ModelNotFound`, `InvalidInput` or `Forbidden`.

        Raises:
            InvalidInput: An argument is not what it should be.
            TaskConflict: The id is that of another task.
            Overloaded: The box already keeps the most durable tasks that it may.
            Unavailable: The box did not confirm that it stored the durable task; submit it again
                with the same id.
            RuntimeError: The client is closed, or was made before this process was forked.
        """
        if deadline_s is not None:
            deadline_ms = milliseconds(deadline_s, deadline_ms, durable)
        if durable:
            options = (deadline_ms, variant, priority, weight, accept_late)
            return Task(self, self.carry_out(accept_plan(id, model, inputs, *options)))
        no_task_id(id)
        call_id = next(self._ids)
        future = RequestFuture(self, self._running, call_id)
        self._exchange.post(
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

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """Sends a request and waits for its result; options and errors are those of `submit`.

        Interrupting the wait, e.g. with Ctrl-C, cancels the request.

        Raises:
            RuntimeError: Also in a callback of one of this client's futures, which can't wait.
        """
        check_may_wait(self._thread)
        submit: Submit = self.submit
        result: Result = _waited_for(submit(model, inputs, deadline_ms=deadline_ms, **options))
        return result

    @overload
    def map(
        self,
        model: str,
        frames: Iterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Iterator[Result]: ...

    @overload
    def map(
        self,
        model: str,
        frames: Iterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool,
        **options: Unpack[Options],
    ) -> Iterator[Result | Exception]: ...

    def map(
        self,
        model: str,
        frames: Iterable[Any],
        *,
        deadline_ms: float | None = None,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[Result | Exception]:
        """Yields the results of many frames, in order, each once the next frame has been sent.

        Args:
            model: The model's name.
            frames: Dicts as for `submit`, or arrays if the model has one input.
            deadline_ms: The deadline of each frame, from when it is sent.
            concurrency: The most frames in flight; with 1, each result is yielded before the next
                frame is asked for.
            return_exceptions: Yield the error of a frame in its place instead of raising it.
            **options: Those of `submit`.

        Raises:
            InvalidInput: An argument is not what it should be.
            LaxityError: The error of the first frame that failed, `InvalidInput` if it can't be
                sent; frames in flight are cancelled.
        """
        check_map(frames, concurrency, options)
        submit: Submit = self.submit

        def send(frame: Any) -> Future[Result] | Task:
            try:
                inputs = frame
                if not isinstance(frame, Mapping):
                    inputs = {self._input_name(model, deadline_ms, options): frame}
                return submit(model, inputs, deadline_ms=deadline_ms, **options)
            except LaxityError as error:  # Reported in order, after earlier frames.
                future: Future[Result] = Future()
                future.set_exception(copy(error))
                return future

        return results(frames, send, concurrency, return_exceptions)

    def cancel(self, future: Future[Result]) -> bool:
        """Cancels a request like `future.cancel()`; returns False if it has already ended."""
        return future.cancel()

    def models(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The models of the box that the caller may use; docs/protocol.md has their fields.

        Raises:
            Unavailable: No answer within `timeout_s`.
        """
        models: dict[str, Any] = self._ask("models", timeout_s)
        return models

    def status(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The state of the box: targets, queues, outcome counts; docs/protocol.md has its fields.

        Raises:
            Forbidden: The tenant does not have the scope `metrics`.
            Unavailable: No answer within `timeout_s`.
        """
        status: dict[str, Any] = self._ask("status", timeout_s)
        return status

    def statistics(self, timeout_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """How the requests for each variant ended since the box started; docs/protocol.md.

        Raises:
            Unavailable: No answer within `timeout_s`.
        """
        counted: list[dict[str, Any]] = self._ask("statistics", timeout_s)
        return counted

    def task(self, id: str) -> Task:
        """A durable task that was submitted earlier, here or elsewhere; not looked up yet."""
        return Task(self, id)

    def tasks(self, count: int = 100, before: str | None = None) -> dict[str, Any]:
        """The durable tasks of this caller.

        Args:
            count: The most to list, the newest first; up to 250.
            before: List only tasks older than the one with this id.

        Returns:
            `tasks`, a list of `TaskStatus`; `counts`, the numbers of waiting tasks and of each
            outcome; and the state of the box's store.
        """
        answer: dict[str, Any] = self.carry_out(tasks_plan(count, before))
        return answer

    def carry_out(self, plan: Plan) -> Any:
        """Carries out a plan's steps, and returns its result."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self._take(step)
                except LaxityError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as done:
            return done.value

    def _take(self, step: Question | TaskRequest | float) -> Any:
        if isinstance(step, float):
            return time.sleep(step)
        check_may_wait(self._thread)
        return _waited_for(self._asked(step))

    def _asked(self, step: Question | TaskRequest) -> Future[Any]:
        call_id = next(self._ids)
        future = RequestFuture(self, self._running, call_id)
        self._exchange.post(step.call(call_id, future))
        return future

    def close(self) -> None:
        """Cancels requests in flight, closes the connection and ends the thread."""
        self._running.close()

    def _ask(self, kind: str, timeout_s: float) -> Any:
        return self._take(Question(kind, timeout_s=timeout_s))

    def _input_name(self, model: str, deadline_ms: Any, options: Options) -> str:
        name = self._input_names.known(model, self._exchange.losses)
        if name is not None:
            return name
        asked = question_of_frame(deadline_ms, options)
        return self._input_names.learn(model, self._take(asked))


def _waited_for(answer: Future[Any] | Task) -> Any:
    """The result; an interrupted wait cancels a request, but a durable task goes on."""
    try:
        return answer.result()
    except BaseException:
        if isinstance(answer, Future):
            answer.cancel()  # nobody waits any more; no effect if it has ended
        raise
    finally:
        # Its error's traceback leads here: a cycle would keep the caller's tensors. For the same
        # reason no caller of this function gives the future a name.
        del answer

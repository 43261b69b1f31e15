"""Bounds the memory of messages: gRPC's library reads a whole message once a call asks for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from scheduler.daemon.asyncio_tasks import heed, keep_task
from scheduler.errors import InvalidInput, LaxityError
from scheduler.ingress.grpc.callers import Callers, abort
from scheduler.ingress.grpc.messages import check_beside_tensors
from scheduler.ingress.held import Held
from scheduler.ingress.oip.outcomes import TooSlow
from scheduler.tenants import Tenant

_MOST_OF_ONE = 0.5
"""The largest part of the places that one tenant may take, so that others find some."""


class Places:
    """Limits how many messages are read at once, and how long each may take.

    Args:
        count: How many messages are read at once.
        patience_s: How long one may take to arrive, in seconds.
        compat: Whose status codes and messages refusals have.

    Attributes:
        compat: Whose status codes and messages refusals have.
    """

    def __init__(self, count: int, patience_s: float, compat: str = "laxity") -> None:
        """Starts with all places free."""
        self._all = asyncio.Semaphore(count)
        each = max(1, int(_MOST_OF_ONE * count))
        self._of: defaultdict[str, asyncio.Semaphore]
        self._of = defaultdict(partial(asyncio.Semaphore, each))
        self._patience_s = patience_s
        self.compat = compat
        self._loop = asyncio.get_running_loop()
        self._endings: set[asyncio.Task[None]] = set()

    async def read(self, tenant: Tenant, context: Any) -> Any:
        """Reads the message of a call, as bytes; `grpc.aio.EOF` if it has none."""
        async with self._of[tenant.name], self._all:
            timer = self._loop.call_later(self._patience_s, self._end, context)
            try:
                return await context.read()
            finally:
                timer.cancel()

    def _end(self, context: Any) -> None:
        error = TooSlow("the message did not arrive in time")
        ending = keep_task(abort(context, error, self.compat), self._endings)
        ending.add_done_callback(heed)  # an abort always raises


class Reading(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Makes every method read within bounds, and counts calls and the bytes of their messages.

    Args:
        callers: Identifies callers, before anything is read.
        held: Counts the bytes of messages until they are answered; if one message has many answers,
            only until it is parsed. The bytes of a single answer count until the client has read
            them.
        calls: Counts single-message calls, from before the message is read until they end, with the
            answer read.
        streams: Counts streaming calls, each of which may read a message at any time.
        places: Limits the reading of single messages.
        most_beside: How many bytes of a message may be outside `raw_input_contents`.
    """

    def __init__(
        self,
        callers: Callers,
        held: Held,
        calls: Held,
        streams: Held,
        places: Places,
        most_beside: int,
    ) -> None:
        """Starts with nothing read."""
        self._callers = callers
        self._held = held
        self._calls = calls
        self._streams = streams
        self._places = places
        self._most_beside = most_beside
        self._known: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Replaces a method's handler with one that keeps to the bounds.

        The new handler gets and returns messages as bytes. For a method with a single message it is
        declared as streaming, so that it reads the message itself; on the wire that is the same.
        """
        method = handler_call_details.method
        if method not in self._known:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            kinds = {
                (False, False): (grpc.stream_unary_rpc_method_handler, self._one_to_one),
                (False, True): (grpc.stream_stream_rpc_method_handler, self._one_to_many),
                (True, True): (grpc.stream_stream_rpc_method_handler, self._many_to_many),
            }
            make, way = kinds[handler.request_streaming, handler.response_streaming]
            self._known[method] = make(way(handler), None, None)
        return self._known[method]

    def _one_to_one(self, handler: Any) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def answer(_requests: Any, context: Any) -> bytes:
            tenant = await self._enter(context, self._calls)
            size, message = await self._read(handler, tenant, context)
            try:
                response = await handler.unary_unary(message, context)
            finally:
                del message  # an error leads back to this frame, and gRPC keeps it for long
                self._held.release(tenant, size)
            raw: bytes = handler.response_serializer(response)
            self._held.add(tenant, len(raw))
            _release_at_end(context, self._held, tenant, len(raw))
            return raw

        return answer

    def _one_to_many(self, handler: Any) -> Callable[[Any, Any], AsyncIterator[bytes]]:
        async def answer(_requests: Any, context: Any) -> AsyncIterator[bytes]:
            tenant = await self._enter(context, self._calls)
            size, message = await self._read(handler, tenant, context)
            self._held.release(tenant, size)
            async for response in handler.unary_stream(message, context):
                yield handler.response_serializer(response)

        return answer

    def _many_to_many(self, handler: Any) -> Callable[[Any, Any], AsyncIterator[bytes]]:
        """For methods that answer each message once, in order."""

        async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
            tenant = await self._enter(context, self._streams)
            sizes: deque[int] = deque()

            async def messages() -> AsyncIterator[Any]:
                async for raw in requests:
                    self._held.hold(tenant, len(raw))
                    sizes.append(len(raw))
                    yield self._parsed(handler, raw)

            try:
                # Closed before the release below: it would read, and count, one message more.
                async with aclosing(handler.stream_stream(messages(), context)) as responses:
                    async for response in responses:
                        self._held.release(tenant, sizes.popleft())
                        yield handler.response_serializer(response)
            except LaxityError as error:
                await abort(context, error, self._places.compat)
            finally:
                self._held.release(tenant, sum(sizes))

        return answer

    async def _read(self, handler: Any, tenant: Tenant, context: Any) -> tuple[int, Any]:
        """Reads the call's only message; returns its size, now counted as held, and the message."""
        try:
            raw = await self._places.read(tenant, context)
            if raw is grpc.aio.EOF:
                raise InvalidInput("the call has no message")
            message = self._parsed(handler, raw)
            self._held.hold(tenant, len(raw))
        except LaxityError as error:
            await abort(context, error, self._places.compat)
        return len(raw), message

    async def _enter(self, context: Any, room: Held) -> Tenant:
        """Identifies the caller, and counts the call until it has ended.

        It ends with the answer's last byte, for which a client may let it wait.
        """
        try:
            tenant = self._callers.tenant(context)
            room.hold(tenant, 1)
        except LaxityError as error:
            await abort(context, error, self._places.compat)
        _release_at_end(context, room, tenant, 1)
        return tenant

    def _parsed(self, handler: Any, raw: bytes) -> Any:
        check_beside_tensors(raw, self._most_beside)
        try:
            return handler.request_deserializer(raw)
        except DecodeError:
            raise InvalidInput("the message is not of the type that this method takes") from None


def _release_at_end(context: Any, held: Held, tenant: Tenant, count: int) -> None:
    """Releases what is held once the call has ended.

    A context and its callbacks refer to each other, so they stay until the garbage collector runs:
    a callback must not refer to a message.
    """
    context.add_done_callback(lambda _: held.release(tenant, count))

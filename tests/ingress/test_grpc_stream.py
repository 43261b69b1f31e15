"""Streams of the gRPC door: what is left when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tritonclient.grpc import service_pb2 as pb

from scheduler.errors import Overloaded
from scheduler.ingress.grpc.callers import Callers
from scheduler.ingress.grpc.service import InferenceService
from scheduler.ingress.oip.service import Service
from scheduler.tenants import Access, Tenant, hash_of, new_token
from tests.ingress.test_native_door import run

CONTEXT = SimpleNamespace(invocation_metadata=lambda: (), auth_context=dict)
NOBODY = Access([Tenant(name="a", tokens=(hash_of(new_token()),))])


async def two_and(end: asyncio.Event | Exception) -> AsyncIterator[Any]:
    for name in "ab":
        yield pb.ModelInferRequest(id=name)
    if isinstance(end, Exception):
        raise end
    await end.wait()


def answers(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    service = SimpleNamespace(box=None, compat="laxity")
    door = InferenceService(cast(Service, service), Callers(NOBODY))
    return door.ModelStreamInfer(requests, CONTEXT)


def test_a_stream_that_is_left_leaves_nothing_behind() -> None:
    async def test() -> None:
        stream = answers(two_and(asyncio.Event()))
        assert [(await anext(stream)).infer_response.id for _ in range(2)] == ["a", "b"]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


@pytest.mark.parametrize("end", ["itself", "error"])
def test_what_was_asked_before_a_stream_ends_is_answered(end: str) -> None:
    async def test() -> None:
        over = asyncio.Event()
        over.set()
        stream = cast(Any, answers(two_and(over if end == "itself" else Overloaded("full"))))
        async with aclosing(stream):
            assert [(await anext(stream)).infer_response.id for _ in range(2)] == ["a", "b"]
            with pytest.raises(StopAsyncIteration if end == "itself" else Overloaded):
                await anext(stream)

    run(test)

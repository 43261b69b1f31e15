"""Long JSON, and typed values over gRPC: how much of a door's time one tenant has for them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from scheduler.ingress.grpc.callers import Callers
from scheduler.ingress.grpc.service import InferenceService
from scheduler.ingress.held import Held
from scheduler.ingress.http.embedded import EmbeddedDoor
from scheduler.ingress.oip import pace
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.pace import LONG_BYTES, Pace
from scheduler.ingress.oip.request import InferRequest
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import OWNER, Access, Tenant, hash_of
from tests.ingress.test_embedded_door import BODY, INFER, OneModel, box, parts, with_door
from tests.ingress.test_grpc_calls import a_call
from tests.neighbours.virtual_loop import VirtualLoop, run_virtually

__all__ = ["box"]

WORK_S = 0.4
A, B = Tenant(name="a"), Tenant(name="b")
TOKENS = {"a": "lx_0123456789abcdef", "b": "lx_fedcba9876543210"}


async def working_times(others_ask: bool) -> list[float]:
    """When each of five pieces of work of one tenant begins, in seconds from the first."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    began: list[float] = []
    held = Pace(loop.time)

    async def work() -> None:
        held.note(A)
        asked_s = loop.time()
        async with held.turn(A) as waited_ns:
            began.append(loop.time())
            assert waited_ns == int((began[-1] - asked_s) * 1e9)
            loop._virtual.passed_s += WORK_S

    async def ask() -> None:
        while others_ask:
            held.note(B)
            await asyncio.sleep(pace.COMPANY_S / 10)

    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    await asyncio.gather(*(work() for _ in range(5)))
    asking.cancel()
    return [at - began[0] for at in began]


def test_who_works_for_long_rests_in_between_while_others_ask() -> None:
    times = run_virtually(working_times(others_ask=True))
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert all(step >= (1 + pace.REST) * WORK_S - 1e-6 for step in steps)


def test_who_is_alone_does_not_rest() -> None:
    times = run_virtually(working_times(others_ask=False))
    assert times == pytest.approx([n * WORK_S for n in range(5)])


def test_the_wait_is_part_of_a_requests_deadline() -> None:
    request = InferRequest("m", "", "", {}, {}, waited_ns=400_000_000)
    defaults = Defaults(1_000.0, {})
    service = Service(cast(Any, None), SharedMemory(None), defaults, "laxity", 8, "", 0)
    assert service.terms(request, {}, "m", A).deadline_ms == 600
    assert service.terms(replace(request, waited_ns=0), {}, "m", A).deadline_ms == 1_000


def test_only_long_work_of_those_with_quotas_waits() -> None:
    held = Pace()
    assert held.holds(A, LONG_BYTES)
    assert not held.holds(A, LONG_BYTES - 1)
    assert not held.holds(OWNER, LONG_BYTES)


def test_short_requests_of_others_go_before_more_long_json(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "REST", 1e9)
    monkeypatch.setattr(pace, "COMPANY_S", 1e9)
    access = Access([Tenant(name=name, tokens=(hash_of(token),)) for name, token in TOKENS.items()])
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 15_000], "data": [0.5] * 15_000}
    long = json.dumps({"inputs": [tensor]}).encode()

    async def work(door: EmbeddedDoor) -> None:
        def ask(name: str, body: bytes) -> asyncio.Task[int]:
            async def answered() -> int:
                headers = (("authorization", f"Bearer {TOKENS[name]}"),)
                answer = door.answer("POST", INFER, headers, parts(body), is_local=True)
                return (await answer).status

            return asyncio.ensure_future(answered())

        assert await ask("b", BODY) == 200
        assert await ask("a", long) == 200
        waits = ask("a", long)
        for _ in range(3):
            assert await ask("b", BODY) == 200
            assert await ask("a", BODY) == 200
        assert not waits.done()
        waits.cancel()
        await asyncio.wait((waits,))

    with_door(box, work, access)


def test_short_calls_of_others_go_before_more_typed_values(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "REST", 1e9)
    monkeypatch.setattr(pace, "COMPANY_S", 1e9)
    box.on_infer = lambda peer, header: peer.refuse(header, "infeasible")

    async def test() -> None:
        service = Service(
            Box(box.url), SharedMemory(None), Defaults(60_000.0, {}), "laxity", 8, "info", 10**6
        )
        tenants = [Tenant(name=name, tokens=(hash_of(token),)) for name, token in TOKENS.items()]
        door = InferenceService(service, Callers(Access(tenants)), Held(10**8))

        def ask(name: str, count: int) -> asyncio.Task[Any]:
            metadata = (("authorization", f"Bearer {TOKENS[name]}"),)
            context = a_call(auth_context=dict, invocation_metadata=lambda: metadata)
            message = pb.ModelInferRequest(model_name="digits")
            tensor = message.inputs.add(name="image", datatype="FP32", shape=[1, count])
            tensor.contents.fp32_contents.extend([0.5] * count)
            return asyncio.ensure_future(door.ModelInfer(message, context))

        async def refused(name: str, count: int) -> None:
            with pytest.raises(grpc.RpcError):
                await ask(name, count)

        await refused("b", 2)
        await refused("a", LONG_BYTES)
        waits = ask("a", LONG_BYTES)
        for _ in range(3):
            await refused("b", 2)
            await refused("a", 2)
        assert not waits.done()
        waits.cancel()
        await asyncio.wait((waits,))
        service.box.close()

    asyncio.run(test())

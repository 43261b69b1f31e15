"""A request that fails leaves none of its tensors in reference cycles.

Python's collector counts objects and not bytes, so such tensors could fill the memory before it
runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import uvloop

from scheduler import AsyncClient, Client, LaxityError, wire
from scheduler.address import parse_address
from scheduler.client.connection import connect
from tests.fake_box import Peer

LIMIT = wire.FrameLimits().body_bytes
WAYS = {
    "refused": (1, {"deadline_s": 60}),
    "never sent": (LIMIT, {"deadline_s": 60}),
    "invalid": (1, {"deadline_s": -1}),
    "durable": (1, {"deadline_s": 60, "durable": True}),
}


def refuse(peer: Peer, header: wire.Header) -> None:
    peer.send({"t": "error", "id": header["id"], "code": "overloaded", "message": "no"})


@pytest.fixture(autouse=True)
def _no_collector(box: Any) -> Iterator[None]:
    box.on_infer = box.on_task = refuse
    gc.disable()
    yield
    gc.enable()


def request_of(size: int) -> tuple[dict[str, Any], weakref.ref[Any]]:
    # Never written, so it takes no memory. One byte in itself is within the limit.
    x = np.zeros(size + (size > 1), np.uint8)
    return {"image": x}, weakref.ref(x)


@pytest.mark.parametrize("how", ["infer", "map", "map, exceptions returned"])
@pytest.mark.parametrize(("size", "options"), WAYS.values(), ids=WAYS)
def test_of_a_client(box, how, size, options):
    def ask(client: Client) -> weakref.ref[Any]:
        inputs, kept = request_of(size)
        with contextlib.suppress(LaxityError):
            if how == "infer":
                client.infer("digits", inputs, **options)
            else:
                mapped = client.map("digits", [inputs], return_exceptions=how != "map", **options)
                for _ in mapped:
                    pass
        return kept

    with Client(box.url) as client:
        kept = ask(client)
        client.models()  # by now the client's thread has let go too
        box.seen.clear()
        assert kept() is None


@pytest.mark.parametrize("how", ["infer", "map", "map, exceptions returned"])
@pytest.mark.parametrize(("size", "options"), WAYS.values(), ids=WAYS)
def test_of_an_asynchronous_client(box, how, size, options):
    async def ask(client: AsyncClient) -> weakref.ref[Any]:
        inputs, kept = request_of(size)
        with contextlib.suppress(LaxityError):
            if how == "infer":
                await client.infer("digits", inputs, **options)
            else:
                mapped = client.map("digits", [inputs], return_exceptions=how != "map", **options)
                async for _ in mapped:
                    pass
        return kept

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            kept = await ask(client)
            await client.models()
            box.seen.clear()
            assert kept() is None

    asyncio.run(main())


@pytest.mark.parametrize("how", ["nobody", "hangs up"])
def test_of_an_attempt_to_connect(box, how, tmp_path):
    """A box tries for days to reach another that is off."""

    async def attempt() -> None:
        server = await asyncio.start_unix_server(lambda _, there: there.close(), tmp_path / "s")
        if how == "nobody":
            server.close()
        with pytest.raises(OSError, match=r"No such file|closed|reset|Broken pipe|refused"):
            await connect(parse_address(f"unix://{tmp_path}/s"), None, ignored, ignored)
        server.close()

    def ignored(*_: Any) -> None: ...

    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, wire.FrameReader)}
    uvloop.run(attempt())
    left = [each for each in gc.get_objects() if isinstance(each, wire.FrameReader)]
    assert [each for each in left if id(each) not in before] == []

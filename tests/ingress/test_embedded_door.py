"""The HTTP door's answers behind a server of somebody else's, without that server."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from scheduler import wire
from scheduler.ingress.http import infer
from scheduler.ingress.http.embedded import EmbeddedDoor
from scheduler.ingress.http.messages import Response
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import ANYONE, OWNER, Access, hash_of, new_token
from tests.fake_box import FakeBox, Peer, ignore
from tests.ingress.memory_transport import LIMITS
from tests.waiting import PATIENCE_S

TENSOR = {"name": "image", "dtype": "float32", "shape": [2]}
DIGITS: dict[str, Any] = {
    "name": "digits",
    "batched": True,
    "max_batch": 4,
    "inputs": [TENSOR],
    "outputs": [TENSOR],
    "variants": [{"name": "fp32", "targets": [{"target": "cpu:0"}]}],
    "loaded": True,
}
ASKED: dict[str, Any] = {"models": {"models": [DIGITS], "problems": []}}
ASKED["status"] = {"targets": [{"id": "cpu:0", "up": True}], "draining": False, "policy": {}}
INFER = "/v2/models/digits/infer"
BODY = json.dumps(
    {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}]}
).encode()


class OneModel(FakeBox):
    """Answers questions with one model, which is up; after a while, where that is set."""

    after_s = 0.0

    def take(self, peer: Peer, header: wire.Header) -> None:
        if header["t"] in ASKED:
            reply = {"t": "reply", "id": header["id"], "value": ASKED[header["t"]]}
            self.loop.call_later(self.after_s, peer.send, reply)
        else:
            super().take(peer, header)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[OneModel]:
    box = OneModel(tmp_path / "s")
    box.start()
    yield box
    box.close()


def with_door(
    box: FakeBox,
    work: Callable[[EmbeddedDoor], Awaitable[Any]],
    access: Access | None = None,
    no_orders: str = "",
    memory: SharedMemory | None = None,
    request_s: float = PATIENCE_S,
) -> Any:
    """What some work with a door gives, on a loop of its own."""

    async def run() -> Any:
        defaults = Defaults(10_000.0, {})
        service = Service(
            Box(box.url),
            memory or SharedMemory(None),
            defaults,
            "laxity",
            8,
            "info",
            LIMITS.body_bytes,
            no_orders=no_orders,
        )
        try:
            limits = replace(LIMITS, request_s=request_s)
            return await work(EmbeddedDoor(service, limits, access or Access()))
        finally:
            service.box.close()

    return asyncio.run(run())


async def parts(*all_of_them: bytes) -> AsyncIterator[bytes]:
    for part in all_of_them:
        yield part


def ask(
    box: FakeBox,
    method: str,
    path: str,
    *body: bytes,
    headers: tuple[tuple[str, str], ...] = (),
    is_local: bool = True,
    access: Access | None = None,
) -> Response:
    """The answer to one request."""

    async def work(door: EmbeddedDoor) -> Response:
        return await door.answer(method, path, headers, parts(*body), is_local=is_local)

    found: Response = with_door(box, work, access)
    return found


def said(response: Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(response.body))
    return found


def test_an_inference_that_comes_in_pieces_is_answered(box: OneModel) -> None:
    response = ask(box, "POST", INFER, BODY[:10], BODY[10:], b"")
    assert response.status == 200
    assert said(response)["outputs"][0]["data"] == [1.5, 2.5]
    assert ("x-laxity-outcome", "completed") in response.headers


def test_the_wait_for_a_scheduler_that_starts_counts_against_the_deadline(box: OneModel) -> None:
    box.after_s = 0.3
    assert ask(box, "POST", INFER, BODY, headers=(("x-request-timeout-ms", "60000"),)).status == 200
    ((_, asked),) = box.messages("infer")
    assert asked["budget_ns"] < 59_800_000_000


@pytest.mark.parametrize("where", ["header", "parameters"])
def test_a_request_that_waits_for_the_scheduler_ends_at_its_deadline(
    box: OneModel, where: str
) -> None:
    box.stop()
    given: tuple[tuple[str, str], ...] = (("x-request-timeout-ms", "20"),)
    body = {**json.loads(BODY), "parameters": {"timeout": 20_000}}
    if where == "header":
        response = ask(box, "POST", INFER, BODY, headers=given)
    else:
        response = ask(box, "POST", INFER, json.dumps(body).encode())
    assert (response.status, said(response)["code"]) == (504, "expired")
    assert said(response)["budget_ms"] == 20


def test_the_budget_goes_to_the_scheduler_and_its_refusal_comes_back(box: OneModel) -> None:
    def refuse(peer: Peer, header: wire.Header) -> None:
        assert 0 < header["budget_ns"] <= 2e9
        peer.refuse(header, "infeasible", earliest_budget_ms={"cpu:0": 8000.0}, retry_after_ms=1500)

    box.on_infer = refuse
    response = ask(box, "POST", INFER, BODY, headers=(("x-request-timeout-ms", "2000"),))
    assert response.status == 429
    assert dict(response.headers)["retry-after"] == "2"
    assert said(response)["code"] == "infeasible"
    assert 8_000.0 < said(response)["earliest_ms"] < 8_920  # the way is the door's to add


def test_a_deadline_as_long_as_the_offer_is_met(box: OneModel) -> None:
    def admit(peer: Peer, header: wire.Header) -> None:
        if header["budget_ns"] < 20_000_000_000:
            peer.refuse(header, "infeasible", earliest_budget_ms={"cpu:0": 20_000.0})
        else:
            peer.answer(header)

    async def work(door: EmbeddedDoor) -> float | None:
        deadline_ms = 10_000.0
        for _ in range(10):  # a busy machine may keep a call longer than the one before
            headers = [("x-request-timeout-ms", str(deadline_ms))]
            response = await door.answer("POST", INFER, headers, parts(BODY), is_local=True)
            if response.status == 200:
                return None
            deadline_ms = said(response)["earliest_ms"]
        return deadline_ms

    box.on_infer = admit
    assert with_door(box, work) is None


def test_a_deadline_that_passes_is_named_as_the_caller_gave_it(box: OneModel) -> None:
    box.on_infer = ignore
    response = ask(box, "POST", INFER, BODY, headers=(("x-request-timeout-ms", "100"),))
    assert response.status == 504
    why = "the deadline of 100 ms passed before the scheduler's answer came"
    assert said(response) == {"error": why, "code": "expired", "budget_ms": 100}


@pytest.mark.parametrize(
    ("code", "status"),
    [("overloaded", 429), ("expired", 504), ("unavailable", 503), ("failed", 500)],
)
def test_every_outcome_has_its_status(box: OneModel, code: str, status: int) -> None:
    box.on_infer = lambda peer, header: peer.refuse(header, code)
    response = ask(box, "POST", INFER, BODY)
    assert (response.status, said(response)["code"]) == (status, code)


def test_wrong_requests_are_refused_in_the_door(box: OneModel) -> None:
    assert ask(box, "POST", "/v2/models/none/infer", BODY).status == 404
    assert ask(box, "POST", INFER, b"{").status == 400
    assert ask(box, "GET", "/v3").status == 404
    assert ask(box, "DELETE", "/v2").status == 405


def test_the_version_is_that_which_runs(box: OneModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = said(ask(box, "GET", "/v2"))["version"]
    monkeypatch.setattr(metadata, "version", lambda _: "what was installed since")
    assert said(ask(box, "GET", "/v2"))["version"] == before


def test_head_is_answered_like_get(box: OneModel) -> None:
    assert ask(box, "HEAD", "/v2/health/ready").status == 200


def test_too_large_a_body_is_refused_and_no_longer_counted(box: OneModel) -> None:
    async def work(door: EmbeddedDoor) -> list[int]:
        half = bytes(LIMITS.body_bytes // 2 + 1)
        # As often as would fill what all bodies may hold, were one of them still counted.
        return [
            (await door.answer("POST", INFER, (), parts(half, half), is_local=True)).status
            for _ in range(3)
        ]

    assert with_door(box, work) == [413, 413, 413]


def test_a_body_that_never_ends_is_refused(box: OneModel) -> None:
    async def never_ends() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await asyncio.Event().wait()

    async def work(door: EmbeddedDoor) -> Response:
        return await door.answer("POST", INFER, (), never_ends(), is_local=True)

    response = with_door(box, work, request_s=LIMITS.request_s)
    assert (response.status, said(response)["code"]) == (408, "too_slow")


def test_a_body_of_unknown_size_has_the_time_that_its_size_allows(box: OneModel) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield bytes(90_000)  # 0.9 s at the least rate
        await asyncio.sleep(4 * LIMITS.request_s)
        yield bytes(1)

    async def work(door: EmbeddedDoor) -> Response:
        return await door.answer("POST", INFER, (), slow(), is_local=True)

    assert with_door(box, work, request_s=LIMITS.request_s).status == 400  # zeros are no JSON


def test_who_shows_no_token_stays_outside(box: OneModel) -> None:
    token = new_token()
    access = Access([OWNER.model_copy(update={"tokens": (hash_of(token),)})])
    for shown, status in ((token, 200), (new_token(), 401), (None, 401)):
        headers = (("authorization", f"Bearer {shown}"),) if shown else ()
        asked = ask(box, "GET", "/v2", headers=headers, is_local=False, access=access)
        assert asked.status == status


def test_who_may_come_in_can_change(box: OneModel) -> None:
    async def work(door: EmbeddedDoor) -> list[int]:
        async def ask() -> int:
            return (await door.answer("GET", "/v2", (), parts(), is_local=True)).status

        before = await ask()
        door.reload(Access([OWNER.model_copy(update={"tokens": (hash_of(new_token()),)})]))
        return [before, await ask()]

    assert with_door(box, work) == [200, 401]


def test_an_address_for_others_lets_nobody_in_without_tokens(box: OneModel) -> None:
    response = ask(box, "GET", "/v2", is_local=False)
    assert response.status == 401
    assert "token_file" in said(response)["error"]


def test_one_of_several_takes_no_orders(box: OneModel) -> None:
    token = new_token()
    access = Access([OWNER.model_copy(update={"tokens": (hash_of(token),)})])
    headers = (("authorization", f"Bearer {token}"),)

    async def work(door: EmbeddedDoor) -> Response:
        path = "/v2/repository/models/digits/unload"
        return await door.answer("POST", path, headers, parts(b"{}"), is_local=True)

    response = with_door(box, work, access, "there are others")
    assert (response.status, said(response)["error"]) == (403, "there are others")


def test_web_pages_stay_outside(box: OneModel) -> None:
    assert ask(box, "GET", "/v2", headers=(("origin", "http://a.example"),)).status == 403
    assert ask(box, "GET", "/v2", headers=(("host", "a.example:8800"),)).status == 403
    assert ask(box, "GET", "/v2", headers=(("host", "localhost:8800"),)).status == 200


def test_a_header_that_comes_twice_counts_as_one(box: OneModel) -> None:
    seen = (("prefer", "wait=5"), ("prefer", "handling=lenient"))
    assert ask(box, "POST", INFER, BODY, headers=seen).status == 200
    _, header = box.wait("infer")[0]
    assert 4e9 < header["budget_ns"] <= 5e9


def test_a_client_that_goes_away_cancels_its_request(box: OneModel) -> None:
    box.on_infer = ignore

    async def work(door: EmbeddedDoor) -> None:
        asking = asyncio.create_task(door.answer("POST", INFER, (), parts(BODY), is_local=True))
        await asyncio.to_thread(box.wait, "infer")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(box.wait, "cancel")

    with_door(box, work)
    (_, asked), (_, cancelled) = box.wait("infer")[0], box.wait("cancel")[0]
    assert cancelled["id"] == asked["id"]


def test_nothing_is_decompressed_for_who_was_told_to_wait(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []
    monkeypatch.setattr(infer, "decoded", lambda *given: decoded.append(given))

    def refuse(peer: Peer, header: wire.Header) -> None:
        peer.refuse(header, "overloaded", tenant=header["tenant"], retry_after_ms=1e9)

    box.on_infer = refuse

    async def work(door: EmbeddedDoor) -> list[int]:
        answers = [
            await door.answer("POST", INFER, headers, parts(BODY), is_local=True)
            for headers in ((), (("content-encoding", "gzip"),))
        ]
        return [answer.status for answer in answers]

    assert with_door(box, work) == [429, 429]
    assert not decoded


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SharedMemory]:
    """A registry with one region, `r`, of 400,000 bytes."""
    found = Path(f"/dev/shm/laxity-held-{os.getpid()}")
    found.write_bytes(bytes(400_000))
    memory = SharedMemory(tmp_path / "registry")
    memory.register(ANYONE, "r", f"/{found.name}", 0, 400_000)
    yield memory
    found.unlink()


def test_what_a_request_has_elsewhere_counts_as_its_body_does(
    box: OneModel, memory: SharedMemory
) -> None:
    box.on_infer = ignore
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 400_000}
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 100_000], "parameters": parameters}
    body = json.dumps({"inputs": [tensor]}).encode()

    async def work(door: EmbeddedDoor) -> None:
        asked = [
            asyncio.create_task(door.answer("POST", INFER, (), parts(body), is_local=True))
            for _ in range(2)
        ]
        (refused,), (waiting,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert (await refused).status == 429
        assert door._door.held.count > 400_000
        waiting.cancel()
        await asyncio.wait([waiting])
        assert door._door.held.count == 0

    with_door(box, work, memory=memory)


def test_a_variant_that_came_later_can_be_asked_for(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a cloud which was connected after the door had looked."""
    asked = ("POST", "/v2/models/digits/versions/late/infer", ())

    async def work(door: EmbeddedDoor) -> None:
        before = await door.answer(*asked, parts(BODY), is_local=True)
        assert before.status == 404
        later = {**DIGITS, "variants": [*DIGITS["variants"], {"name": "late", "targets": []}]}
        monkeypatch.setitem(ASKED, "models", {"models": [later], "problems": []})
        while (after := await door.answer(*asked, parts(BODY), is_local=True)).status != 200:
            assert after.status == 404
            await asyncio.sleep(0.01)  # what a door has just heard it does not ask again

    with_door(box, lambda door: asyncio.wait_for(work(door), PATIENCE_S))


def test_an_answered_request_leaves_nothing_in_memory(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else bodies fill the memory until garbage is collected, by count and not by size."""
    kept: list[weakref.ref[memoryview]] = []
    read = EmbeddedDoor._read

    async def noted(*args: Any) -> memoryview:
        whole = await read(*args)
        kept.append(weakref.ref(whole))
        return whole

    monkeypatch.setattr(EmbeddedDoor, "_read", noted)
    gc.disable()
    try:
        for _ in range(2):  # the first one waits for the signature, in a task
            assert ask(box, "POST", INFER, BODY).status == 200
        assert [body() for body in kept] == [None, None]
    finally:
        gc.enable()

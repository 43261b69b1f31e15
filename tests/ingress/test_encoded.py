"""Inputs in a smaller form at every door: had back before anything is checked, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler import Overloaded, wire
from scheduler.address import parse_address
from scheduler.client.connection import Connection, connect
from scheduler.daemon.cloud.endpoint import Endpoint, Fault, Inference, InputTensor, RemoteError
from scheduler.encodings import jpeg
from scheduler.encodings.text import ENCODING_EXTENSION, text_of
from scheduler.ingress.oip import encoded
from scheduler.tenants import ANYONE
from tests.daemon.shrunk_boxes import JPEG, PHOTO, TOKEN, Doors, card, doors
from tests.encodings.images import photograph

TEXT = text_of(JPEG)
HALF = PHOTO.astype(np.float16)
IMAGE = jpeg.encode(photograph(80, 80), 90)
TALL = jpeg.encode(photograph(160, 80), 90)


def at_doors(folder: Path, work: Callable[[Doors], Awaitable[None]]) -> None:
    async def run() -> None:
        async with doors(folder, card()) as open_doors:
            await work(open_doors)

    asyncio.run(asyncio.wait_for(run(), 60))


def asked(*inputs: InputTensor) -> Inference:
    return Inference("m", "", inputs, ["mean"], 20.0, 20.0)


def images(*raws: bytes, text: str = TEXT) -> InputTensor:
    parts = [part for raw in raws for part in (len(raw).to_bytes(4, "little"), raw)]
    return InputTensor("image", "BYTES", (len(raws),), parts, text)


def halves(array: np.ndarray[Any, Any], datatype: str = "FP16") -> InputTensor:
    return InputTensor("image", datatype, array.shape, [array.tobytes()], "float16")


# -- the Open Inference Protocol


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_door_has_inputs_back_and_says_how_long_it_took(scheme: str, tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        endpoint: Endpoint = open_doors.endpoints[scheme]
        said = await endpoint.extensions(5.0)
        assert {ENCODING_EXTENSION + name for name in ("float16", "jpeg")} <= said
        for tensor, most in ((halves(HALF[None]), 2.0**-11), (images(IMAGE), 0.3)):
            found = await endpoint.infer(asked(tensor))
            [given] = open_doors.device.given[-1:]
            assert given.dtype == np.float32
            assert given.shape == PHOTO.shape
            assert 0 < abs(given - PHOTO).max() < most
            assert found.restore_ns > 0
            assert found.there_ns is not None
            assert found.there_ns >= found.restore_ns
            assert found.notes == {}
        both = await endpoint.infer(asked(images(IMAGE, IMAGE)))
        assert both.outputs["mean"].shape == (2, 3)

    at_doors(tmp_path, work)


REFUSED = [
    (halves(HALF[None].astype(np.float32), "FP32"), "does not have that dtype"),
    (halves(HALF[None, :, :40]), "shape"),
    (InputTensor("image", "FP16", HALF.shape, [HALF.tobytes()], "zip"), "zip"),
    (images(), "bytes of its images|items"),
    (images(IMAGE, TALL), "differ in size"),
    (images(TALL), r"\[3, 80, 80\], the image \[3, 160, 80\]"),
    (images(b"no image"), "does not begin"),
    (images(IMAGE[:-9]), "does not end"),
    (images(IMAGE, text=TEXT.replace("NCHW", "NHWC")), "shape"),
    (InputTensor("image", "BYTES", (2,), [b"\x01\0\0\0x"], TEXT), "has 1 elements"),
    (InputTensor("image", "BYTES", (1,), [b"\xff\0\0\0x"], TEXT), "within an element"),
    (InputTensor("other", "FP16", HALF.shape, [HALF.tobytes()], "float16"), "no input 'other'"),
]


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_door_refuses_what_can_not_become_the_input(scheme: str, tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        for tensor, why in REFUSED:
            with pytest.raises(RemoteError, match=why) as raised:
                await open_doors.endpoints[scheme].infer(asked(tensor))
            assert raised.value.fault is Fault.INVALID, why
        assert not open_doors.device.given
        await open_doors.endpoints[scheme].infer(asked(images(IMAGE)))

    at_doors(tmp_path, work)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_inputs_are_no_larger_than_those_that_come_as_they_are(scheme: str, tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        open_doors.service.body_bytes = PHOTO.nbytes
        endpoint = open_doors.endpoints[scheme]
        await endpoint.infer(asked(images(IMAGE)))
        with pytest.raises(RemoteError, match="would have 153600 bytes") as raised:
            await endpoint.infer(asked(images(IMAGE, IMAGE)))
        assert raised.value.fault is Fault.INVALID

    at_doors(tmp_path, work)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_what_was_made_smaller_once_is_exact_from_then_on(scheme: str, tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        await open_doors.endpoints[scheme].infer(asked(images(IMAGE)))
        as_is = InputTensor("image", "FP32", (1, *PHOTO.shape), [PHOTO.tobytes()])
        await open_doors.endpoints[scheme].infer(asked(as_is))
        assert [kind.exact for kind in open_doors.device.kinds] == [True, False]

    at_doors(tmp_path, work)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_nothing_is_had_back_for_who_was_told_to_wait(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    had_back: list[Any] = []
    monkeypatch.setattr(encoded, "restoration", lambda *given: had_back.append(given))
    wait = Overloaded("not so often", {"tenant": ANYONE.name, "retry_after_ms": 1e9})

    async def work(open_doors: Doors) -> None:
        open_doors.service.box._note_rest(ANYONE.name, wait)
        with pytest.raises(RemoteError, match="not so often"):
            await open_doors.endpoints[scheme].infer(asked(images(IMAGE)))

    at_doors(tmp_path, work)
    assert not had_back


# -- the native protocol


class Caller:
    """A client that says what it likes."""

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}
        self.lost: Exception | None = None

    async def connect(self, box: Doors) -> Connection:
        return await connect(parse_address(box.native), TOKEN, self.on_frame, self.on_lost)

    def on_frame(self, _: Connection, header: wire.Header, body: wire.Body | None) -> None:
        self.answers[header.get("id")] = header

    def on_lost(self, _: Connection, error: Exception) -> None:
        self.lost = error

    async def answer(self, message_id: int) -> Any:
        while message_id not in self.answers:
            assert self.lost is None, self.lost
            await asyncio.sleep(0.005)
        return self.answers[message_id]


def infer(message_id: int, image: np.ndarray[Any, Any], enc: Any, **more: Any) -> list[Any]:
    specs, buffers = wire.pack_tensors({"image": image})
    header = {"t": "infer", "id": message_id, "model": "m", "budget_ns": 10**10, "in": specs}
    return wire.encode({**header, "enc": enc, **more}, buffers)


def vector(raw: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(raw, np.uint8)


def test_the_native_door_has_inputs_back(tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        caller = Caller()
        connection = await caller.connect(open_doors)
        assert connection.encodings == {"float16", "jpeg"}
        connection.send(infer(1, HALF, {"image": "float16"}))
        connection.send(infer(2, vector(IMAGE), {"image": TEXT}))
        for message_id in (1, 2):
            said = await caller.answer(message_id)
            assert said["t"] == "result", said
            assert said["restore_ns"] > 0
            assert said["timing"][3] >= said["restore_ns"] + said["timing"][2]
        assert {given.dtype.name for given in open_doors.device.given} == {"float32"}
        assert all(kind.exact for kind in open_doors.device.kinds)
        connection.close()

    at_doors(tmp_path, work)


@pytest.mark.parametrize(
    ("image", "enc", "why"),
    [
        (HALF, {"image": "float8"}, "not known"),
        (HALF, "float16", "enc is a map"),
        (HALF, {"other": "float16"}, "enc is a map"),
        (PHOTO, {"image": "float16"}, "does not have that dtype"),
        (vector(TALL), {"image": TEXT}, "the image"),
        (vector(IMAGE[:-9]), {"image": TEXT}, "does not end"),
        (vector(b""), {"image": TEXT}, "does not begin"),
        (HALF[:1], {"image": "float16"}, "shape"),
    ],
)
def test_the_native_door_refuses_what_can_not_become_the_input(
    image: np.ndarray[Any, Any], enc: Any, why: str, tmp_path: Path
):
    async def work(open_doors: Doors) -> None:
        caller = Caller()
        connection = await caller.connect(open_doors)
        connection.send(infer(1, image, enc))
        said = await caller.answer(1)
        assert (said["t"], said["code"]) == ("error", "invalid_input")
        assert why in said["message"]
        connection.send(infer(1, HALF, {"image": "float16"}))
        caller.answers.clear()
        assert (await caller.answer(1))["t"] == "result", "the id and the connection go on"
        connection.close()

    at_doors(tmp_path, work)


def test_memory_that_is_not_there_is_not_taken(tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        caller = Caller()
        connection = await caller.connect(open_doors)
        limits = open_doors.driver.core.limits
        open_doors.driver.core.limits = replace(limits, bytes=PHOTO.nbytes - 1)
        connection.send(infer(1, vector(IMAGE), {"image": TEXT}))
        assert (await caller.answer(1))["code"] == "overloaded"
        assert open_doors.door.restorer.held_bytes == 0
        connection.close()

    at_doors(tmp_path, work)


def test_who_cancels_or_goes_while_inputs_are_had_back_runs_nothing(tmp_path: Path):
    async def work(open_doors: Doors) -> None:
        caller = Caller()
        connection = await caller.connect(open_doors)
        frames = infer(1, HALF, {"image": "float16"}) + wire.encode({"t": "cancel", "id": 1})
        connection.send([b"".join(map(bytes, frames))])
        said = await caller.answer(1)
        assert said.get("code", "result") in ("cancelled", "result")
        connection.send(infer(2, HALF, {"image": "float16"}))
        connection.close()
        for _ in range(200):
            await asyncio.sleep(0.005)
            if not open_doors.door.restorer.held_bytes and not open_doors.driver.core.runs:
                break
        assert open_doors.door.restorer.held_bytes == 0
        assert not open_doors.driver.core.ledger.records

    at_doors(tmp_path, work)

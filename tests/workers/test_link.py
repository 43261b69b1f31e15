from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.own_pages import OwnPages
from scheduler.wire import Body, FrameLimits, FrameReader, Header, pack_tensors
from scheduler.wire import encode as frame
from workers import link_server
from workers.link import LINK_LIMITS, card_from, results_from
from workers.link_server import LinkServer

LATER_NS = 2**62


class Doubles:
    """A host whose answer to `x` is twice `x`, once it may."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def run(self, model: str, variant: str, items: list[Any]) -> list[Any]:
        self.began.set()
        self.go.wait(10)
        if variant != "v":
            raise KeyError(f"it does not serve {model}/{variant}")
        return [{"y": np.repeat(item["x"], 2)} for item in items]


class Scheduler:
    """The other end, which sends and hears one message at a time."""

    def __init__(self, path: Path) -> None:
        self.peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.peer.settimeout(10)
        self.peer.connect(str(path))
        self._reader = FrameReader(LINK_LIMITS)
        self._heard: list[tuple[Header, Body | None]] = []

    def run(self, run_id: int, *rows: list[float], variant: str = "v") -> None:
        arrays = [np.array(row, np.float32) for row in rows]
        specs = pack_tensors({"x": arrays[0]})[0]
        bodies = [array.tobytes().ljust(64, b"\0") for array in arrays]
        about = {"model": "m", "variant": variant, "latest_start_ns": LATER_NS}
        header = {"t": "run", "id": run_id, **about, "count": len(rows), "in": specs}
        self.peer.sendall(b"".join(frame(header, bodies)))

    def cancel(self, run_id: int) -> None:
        self.peer.sendall(b"".join(frame({"t": "cancel", "id": run_id})))

    def hear(self) -> tuple[Header, Body | None]:
        while not self._heard:
            count = self.peer.recv_into(self._reader.get_buffer())
            assert count, "the worker hung up"
            self._heard += self._reader.advance(count)
        return self._heard.pop(0)


@pytest.fixture
def host() -> Doubles:
    return Doubles()


@pytest.fixture
def server(tmp_path: Path, host: Doubles) -> LinkServer:
    made = LinkServer(tmp_path / "worker.sock", host)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made


@pytest.fixture
def scheduler(tmp_path: Path, server: LinkServer) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path / "worker.sock")
    yield made
    made.peer.close()


def test_what_is_cancelled_before_it_begins_is_not_run(scheduler, host, server):
    host.go.clear()
    scheduler.run(1, [1.0])
    scheduler.run(2, [2.0])
    scheduler.cancel(2)
    host.go.set()

    assert scheduler.hear()[0]["t"] == "done"
    header, _ = scheduler.hear()
    assert (header["t"], header["id"]) == ("not_run", 2)
    assert not server._cancelled


def test_a_run_of_a_variant_that_is_served_no_more_is_given_back(scheduler):
    scheduler.run(1, [1.0], variant="former")
    header, _ = scheduler.hear()
    assert header == {"t": "not_run", "id": 1, "reason": "it does not serve m/former"}
    scheduler.run(2, [1.0])
    assert scheduler.hear()[0]["t"] == "done"


def test_between_runs_the_answers_of_earlier_ones_have_been_sent(scheduler, host, server):
    def say() -> None:
        with server.between_runs():
            server.say("catalog", {"t": "catalog"})

    host.go.clear()
    scheduler.run(1, [1.0])
    assert host.began.wait(10)
    saying = threading.Thread(target=say)
    saying.start()
    saying.join(0.05)
    host.go.set()
    assert [scheduler.hear()[0]["t"] for _ in range(2)] == ["done", "catalog"]
    saying.join(10)


def test_later_schedulers_are_not_told_what_was_unsaid(scheduler, server, tmp_path):
    server.say("offer m/1", {"t": "offer", "variant": "1"})
    server.say("offer m/2", {"t": "offer", "variant": "2"})
    assert [scheduler.hear()[0]["variant"] for _ in range(2)] == ["1", "2"]
    server.unsay(["offer m/1", "never said"], {"t": "withdrawn", "variants": [["m", "1"]]})
    assert scheduler.hear()[0] == {"t": "withdrawn", "variants": [["m", "1"]]}
    scheduler.peer.close()
    successor = Scheduler(tmp_path / "worker.sock")
    assert successor.hear()[0]["variant"] == "2"
    server.say("last", {"t": "last"})
    assert successor.hear()[0]["t"] == "last"
    successor.peer.close()


def test_nothing_is_kept_of_a_cancellation_that_comes_too_late(scheduler, server):
    for run_id in range(5):
        scheduler.run(run_id, [1.0])
        assert scheduler.hear()[0]["id"] == run_id
        scheduler.cancel(run_id)
    scheduler.run(5, [1.0])
    assert scheduler.hear()[0]["t"] == "done"

    assert not server._cancelled


def test_a_run_that_waits_keeps_the_memory_that_is_forgotten_meanwhile(scheduler, host, server):
    pages = OwnPages(8192)
    pages.block(4096, 8).view(np.float32)[:] = [3.0, 4.0]
    about = {"t": "run", "model": "m", "variant": "v", "latest_start_ns": LATER_NS}
    about["in"] = [["x", "float32", [2]]]
    sent = np.array([5.0, 6.0], np.float32).tobytes().ljust(64, b"\0")

    def say(header: Header, *buffers: bytes) -> None:
        scheduler.peer.sendall(b"".join(frame(header, buffers)))

    say({"t": "map", "pages": 7, **pages.where})
    assert scheduler.hear()[0] == {"t": "mapped", "pages": 7}
    host.go.clear()
    scheduler.run(1, [1.0])
    say({**about, "id": 2, "count": 3, "at": [[7, 4096], None, [7, 4096]]}, sent)
    say({"t": "forget", "pages": 7})
    del pages
    host.go.set()
    assert scheduler.hear()[0]["id"] == 1
    header, body = scheduler.hear()
    found = [
        np.frombuffer(result[1], np.float32).tolist()
        for result in results_from(header, body, 3)
        if not isinstance(result, str)
    ]
    assert found == [[3, 3, 4, 4], [5, 5, 6, 6], [3, 3, 4, 4]]
    assert not server._pages


def test_memory_of_another_process_that_is_gone_is_not_mapped(scheduler):
    pages = OwnPages(4096)
    where = pages.where
    pages.close()
    scheduler.peer.sendall(b"".join(frame({"t": "map", "pages": 1, **where})))
    header, _ = scheduler.hear()
    assert (header["t"], header["pages"]) == ("not_mapped", 1)
    assert f"/proc/{where['pid']}/fd/{where['fd']}" in header["reason"]


def test_an_answer_too_large_for_a_message_fails_alone(scheduler, monkeypatch):
    monkeypatch.setattr(link_server, "LINK_LIMITS", FrameLimits(4 << 20, 100))
    scheduler.run(1, [1.0, 2.0], [3.0, 4.0])
    header, body = scheduler.hear()

    answer, refused = results_from(header, body, 2)
    assert not isinstance(answer, str)
    specs, packed = answer
    assert specs == [["y", "float32", [4]]]
    assert np.frombuffer(packed, np.float32).tolist() == [1, 1, 2, 2]
    assert "more than a message" in refused

    scheduler.run(2, [1.0])
    assert scheduler.hear()[0]["errors"] == []


def test_items_that_cannot_be_read_leave_no_tensors_in_cycles(server):
    def run() -> weakref.ref[Any]:
        body = np.zeros(8, np.uint8)
        about = {"model": "m", "variant": "v", "latest_start_ns": LATER_NS}
        server._run({"id": 1, **about, "count": 1, "in": [["x", "float32", [9]]]}, body.data)
        return weakref.ref(body)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


def test_an_answer_that_no_client_takes_is_not_sent(scheduler, monkeypatch):
    monkeypatch.setattr(link_server, "ANSWER_BYTES", 16)
    scheduler.run(1, [1.0, 2.0, 3.0])
    header, body = scheduler.hear()
    refused = "its outputs take 24 bytes; an answer has room for 16"
    assert results_from(header, body, 1) == [refused]

    scheduler.run(2, [1.0, 2.0])
    assert scheduler.hear()[0]["errors"] == []


def test_a_scheduler_whose_end_another_thread_notices_leaves_nothing(tmp_path: Path) -> None:
    server = LinkServer(tmp_path / "w", Doubles())

    class Gone:
        """Hung up on by `say` just after something was read."""

        def recv_into(self, buffer: Any, size: int, flags: int) -> int:
            server._hang_up()
            return 8

        def close(self) -> None:
            pass

    server._peer = Gone()  # type: ignore[assignment]
    server._receive(block=True)
    server._listener.close()
    assert server._peer is None
    assert not server._waiting


X = {"name": "x", "dtype": "float32", "shape": [None, 3]}
CARD = {
    "name": "m",
    "description": "",
    "signature": {"inputs": [X], "outputs": [{**X, "dtype": "string"}], "batched": True},
    "variants": ["1"],
    "max_batch": 4,
    "digest": "d",
    "cache": {"ttl_s": 1.0, "max_kb": None, "near": {"distance": 2.0, "blocks": 8, "ttl_s": 1.0}},
}


def with_input(**said: Any) -> dict[str, Any]:
    return {"signature": {"inputs": [{**X, **said}], "outputs": [], "batched": True}}


NAMES: tuple[Any, ...] = (5, None, {}, "", "a/b", "m\n", "x" * 129)
WRONG: list[dict[str, Any]] = [
    *({"name": name} for name in NAMES),
    *({"variants": names} for names in ([5], "ab", None, ["1\r\nX-Header: 1"])),
    *(with_input(shape=shape) for shape in (3, ["a"], [-1])),
    *(with_input(dtype=dtype) for dtype in (None, "complex64", "S5")),
    *({"max_batch": size} for size in (0, "x", None)),
    {"signature": None},
    {"cache": {"near": {"distance": "far"}}},
    *({"cache": {"ttl_s": ttl_s}} for ttl_s in (0, -1.0, float("inf"), 1e300, float("nan"))),
    {"cache": {"max_kb": 0}},
    *({"cache": {"near": {"distance": 1.0, **near}}} for near in ({"blocks": 10**9}, {"ttl_s": 0})),
    {"cache": CARD["cache"], "signature": {"inputs": [X, X], "outputs": [], "batched": True}},
    {"description": 7},
    {"digest": [1]},
]


@pytest.mark.parametrize("said", WRONG)
def test_a_card_of_another_box_is_whole_or_none(said: dict[str, Any]) -> None:
    assert card_from({**CARD, "of_a_later_version": 1}).name == "m"
    with pytest.raises(ValueError, match=f"{next(iter(said))}|not a valid name of a model|'x' is"):
        card_from({**CARD, **said})

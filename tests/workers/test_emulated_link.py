"""The emulated way to a device: real sockets, with time and order but no loss."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from workers.runtimes.base import DeviceError, DeviceSpec
from workers.runtimes.emulated import link_of
from workers.runtimes.emulated_link import EmulatedLink, LinkProfile

MS = 1_000_000


class Far:
    """What is at the other end: one connection at a time, taken by hand."""

    def __init__(self, folder: Path, profile: LinkProfile) -> None:
        self.front = folder / "front"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(folder / "back"))
        self.listener.listen(1)
        self.listener.settimeout(PATIENCE_S)
        link = EmulatedLink(profile, self.front, folder / "back")
        threading.Thread(target=link.serve_forever, daemon=True).start()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new connection."""
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.settimeout(PATIENCE_S)
        near.connect(str(self.front))
        far, _ = self.listener.accept()
        far.settimeout(PATIENCE_S)
        return near, far


def received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def sent_ns(source: socket.socket, sink: socket.socket, data: bytes) -> int:
    """How long some bytes take."""
    began_ns = time.monotonic_ns()
    sender = threading.Thread(target=source.sendall, args=(data,))
    sender.start()
    assert received(sink, len(data)) == data
    sender.join()
    return time.monotonic_ns() - began_ns


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Callable[..., Far]]:
    made: list[Far] = []

    def make(**profile: float) -> Far:
        made.append(Far(tmp_path, LinkProfile(**profile)))
        return made[0]

    yield make
    made[0].listener.close()


def test_bytes_come_whole_and_no_sooner_than_the_link_carries_them(link):
    near, distant = link(rtt_ms=20, mbps=80).connect()
    with near, distant:
        assert sent_ns(near, distant, b"x") >= 10 * MS
        assert sent_ns(distant, near, b"y") >= 10 * MS
        data = bytes(range(256)) * 1_000
        assert sent_ns(near, distant, data) >= 10 * MS + len(data) * 100


def test_what_follows_travels_while_the_first_is_on_its_way(link):
    near, distant = link(rtt_ms=400).connect()
    with near, distant:
        began_ns = time.monotonic_ns()
        for _ in range(20):
            near.sendall(b"x")
            time.sleep(0.001)
        sent_ns = time.monotonic_ns()
        assert received(distant, 20) == b"x" * 20
        ended_ns = time.monotonic_ns()
        assert ended_ns - began_ns >= 200 * MS
        # One after the other they would take 20 times the way of 200 ms.
        assert ended_ns - sent_ns < 2_000 * MS


def test_an_end_is_told_to_the_other_side_and_a_new_connection_taken(link):
    far = link(rtt_ms=2)
    near, distant = far.connect()
    near.close()
    assert distant.recv(1) == b""
    distant.close()
    near, distant = far.connect()
    with near:
        distant.close()
        assert near.recv(1) == b""


def test_the_scheduler_is_told_both_ways_and_the_time_of_a_byte():
    assert LinkProfile(rtt_ms=20, mbps=80).transfer_ns == (20 * MS, 100.0)
    assert LinkProfile(rtt_ms=20).transfer_ns == (20 * MS, 0.0)


def test_only_an_emulated_device_has_such_a_link():
    options = {"base_ms": 1, "link": {"rtt_ms": 5}}
    emulated = DeviceSpec("npu:0", "npu", runtimes=("emulated",), options=options)
    assert link_of(emulated) == LinkProfile(rtt_ms=5)
    assert link_of(DeviceSpec("npu:0", "npu", runtimes=("openvino",), options=options)) is None
    wrong = DeviceSpec("npu:0", "npu", runtimes=("emulated",), options={"base_ms": 1, "link": 5})
    with pytest.raises(DeviceError, match=r"npu:0: link: .*options are base_ms.* link"):
        link_of(wrong)

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import pytest

from scheduler import Client, DeadlineExpired, wire
from scheduler.client.large_calls import LARGE_BYTES, LARGE_BYTES_TCP
from tests.fake_box import Peer, ignore, image
from tests.waiting import PATIENCE_S

MINUTE_MS = 60_000
LARGE = {"image": np.arange(8 * LARGE_BYTES // 4, dtype=np.float32)}


@pytest.fixture
def client(box):
    box.on_hello = welcome_large
    with Client(box.url) as client:
        yield client


def welcome_large(peer, _header):
    limits = {"header_bytes": 65536, "body_bytes": 64 * LARGE_BYTES}
    peer.send({"t": "welcome", "v": wire.VERSION, "site": "test", "limits": limits})


def test_small_requests_do_not_wait_behind_a_large_one(box):
    stopped: SimpleQueue[Peer] = SimpleQueue()

    def stop_at_large(peer, header):
        """Greets, and reads no more once a large body begins to come."""

        def allocate(header, size):
            peer.transport.pause_reading()
            stopped.put(peer)
            return wire.allocate(header, size)

        peer.reader = wire.FrameReader(wire.FrameLimits(), allocate)
        welcome_large(peer, header)

    box.on_hello = stop_at_large
    with Client(box.url) as client:
        large = client.submit("digits", LARGE, deadline_ms=MINUTE_MS)
        peer = stopped.get(timeout=PATIENCE_S)
        for n in range(3):
            result = client.infer("digits", image(n), deadline_ms=MINUTE_MS)
            assert result["image"].tolist() == [n]
        assert not large.done()
        box.loop.call_soon_threadsafe(peer.transport.resume_reading)
        assert np.array_equal(large.result()["image"], LARGE["image"])


def test_one_that_can_not_wait_for_the_other_connection_to_open_goes_by_the_first(box, client):
    box.wait("hello")
    box.on_hello = ignore
    frame = {"image": np.zeros(LARGE_BYTES // 4 + 1, np.float32)}
    # Until it goes by the first connection: a busy machine may not get to it in time.
    for _ in range(100):
        try:
            result = client.infer("digits", frame, deadline_ms=19)
        except DeadlineExpired:
            continue
        assert result["image"].nbytes == frame["image"].nbytes
        break
    (first, _), (other, _) = box.wait("hello", 2)
    assert {peer for peer, _ in box.messages("infer")} == {first}
    welcome_large(other, {})
    client.infer("digits", frame, deadline_ms=MINUTE_MS)
    assert box.messages("infer")[-1][0] is other


def test_one_whose_deadline_passes_before_the_other_connection_is_open_is_told_so(box, client):
    """The box is there: nothing is unavailable."""
    box.wait("hello")
    box.on_hello = ignore
    with pytest.raises(DeadlineExpired, match="the connection for large requests was not open yet"):
        client.infer("digits", LARGE, deadline_ms=200)
    assert box.messages("infer") == []


def test_what_is_large_is_less_over_tcp_than_over_a_unix_socket(box, client):
    frame = {"image": np.zeros(LARGE_BYTES_TCP // 4 + 1, np.float32)}
    with box.on_tcp() as url, Client(url) as by_tcp:
        for each in (client, by_tcp):
            each.infer("digits", image(1), deadline_ms=MINUTE_MS)
            each.infer("digits", frame, deadline_ms=MINUTE_MS)
    (first, _), (second, _), (third, _), (fourth, _) = box.messages("infer")
    assert second is first
    assert fourth is not third


def test_small_requests_do_not_wait_behind_a_large_answer_of_a_model_known_for_it(box, client):
    box.on_infer = lambda peer, header: peer.answer({**header, "tensors": LARGE})
    for _ in range(2):
        client.infer("segmentation", image(1), deadline_ms=MINUTE_MS)
    box.on_infer = Peer.answer
    client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    first, second, digits = (peer for peer, _ in box.messages("infer"))
    assert first is digits
    assert second is not digits


def test_the_first_large_answer_costs_small_requests_nothing_of_their_budgets(box, client):
    way_ns = 100_000_000 * MINUTE_MS  # 100 minutes
    box.on_infer = lambda peer, header: peer.answer(
        {**header, "tensors": LARGE}, timing=[1, 2, 3, -way_ns]
    )
    client.infer("segmentation", image(1), deadline_ms=MINUTE_MS)
    box.on_infer = Peer.answer
    client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    _, (_, digits) = box.messages("infer")
    assert digits["budget_ns"] > 1_000_000 * MINUTE_MS / 2


def test_a_large_request_can_be_cancelled(box, client):
    box.on_infer = ignore
    large = client.submit("digits", LARGE, deadline_ms=MINUTE_MS)
    ((peer, asked),) = box.wait("infer")
    assert large.cancel()
    ((other, cancelled),) = box.wait("cancel")
    assert other is peer
    assert cancelled["id"] == asked["id"]


def test_a_lost_connection_of_large_requests_is_opened_again(box, client):
    def drop_once(peer, header):
        box.on_infer = Peer.answer
        peer.drop()

    box.on_infer = drop_once
    result = client.infer("digits", LARGE, deadline_ms=MINUTE_MS)
    assert np.array_equal(result["image"], LARGE["image"])
    assert len(box.messages("hello")) == 3


def test_closing_ends_large_requests_too(box, client):
    box.on_infer = ignore
    large = client.submit("digits", LARGE, deadline_ms=MINUTE_MS)
    box.wait("infer")
    client.close()
    assert large.cancelled()
    assert len(box.wait("lost", 2)) == 2

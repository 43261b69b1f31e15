from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import threading
from contextlib import suppress

import numpy as np
import pytest
import structlog

from scheduler.core.limits import Limits
from scheduler.daemon import parts, shared_bodies
from scheduler.daemon.driver import Driver
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.shared_pages import KEPT_BYTES, LEAST_BYTES
from scheduler.wire import unpack_tensors
from tests.waiting import PATIENCE_S

SIZE = 16 * LEAST_BYTES


def taken(bodies: SharedBodies, size: int = LEAST_BYTES) -> memoryview:
    body = bodies.take(size)
    assert body is not None
    return body


def lent(bodies: SharedBodies) -> int:
    number = bodies.lend()
    assert number is not None
    return number


def test_a_body_has_its_memory_until_the_last_view_of_it_ends():
    bodies = SharedBodies(SIZE)
    first, second = taken(bodies, LEAST_BYTES + 1), taken(bodies)
    assert bodies.place_of(first) == (0, 0)
    place = bodies.place_of(second)
    assert place is not None
    number, start = place
    assert number == 0
    assert start >= LEAST_BYTES + 1
    tensor = unpack_tensors([["x", "uint8", [LEAST_BYTES + 1]]], first)["x"]
    del first
    assert bodies.place_of(taken(bodies)) not in (place, (0, 0))
    del tensor
    assert bodies.place_of(taken(bodies)) == (0, 0)


def test_views_may_end_in_any_thread():
    bodies = SharedBodies(SIZE)
    held = [bodies.take(SIZE)]
    assert bodies.take(LEAST_BYTES) is None
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert bodies.take(SIZE) is not None


def test_small_bodies_and_those_kept_elsewhere_are_in_no_pages():
    bodies = SharedBodies(SIZE)
    assert bodies.take(LEAST_BYTES - 1) is None
    assert bodies.place_of(memoryview(bytes(10))) is None
    for _ in range(20):
        assert bodies.place_of(np.empty(LEAST_BYTES, np.uint8).data) is None
    whole = taken(bodies, SIZE)
    assert bodies.place_of(whole[: LEAST_BYTES - 1]) is None
    assert bodies.place_of(whole[640:]) == (0, 640)


def test_what_a_client_writes_is_found_in_what_it_was_lent_until_it_is_gone():
    bodies = SharedBodies(SIZE)
    numbers = [lent(bodies) for _ in range(5)]
    assert numbers == [1, 2, 3, 4, 5]
    ended: list[int] = []
    views = {n: bodies.body(n, 4096 * n, LEAST_BYTES, ended.append) for n in numbers}
    assert {n: bodies.place_of(view) for n, view in views.items()} == {
        n: (n, 4096 * n) for n in numbers
    }
    bodies.withdraw(3)
    assert set(bodies.pages) == {0, 1, 2, 4, 5}
    assert bodies.place_of(views[3]) is None
    assert bodies.place_of(views[4]) == (4, 4 * 4096)
    views[3][:] = bytes(LEAST_BYTES)  # still there
    assert ended == []
    views.clear()
    assert sorted(ended) == [4096 * n for n in numbers]
    assert bodies.lend() == 6


def test_without_a_file_left_a_client_is_lent_nothing(monkeypatch):
    def lacking(*_args):
        raise OSError(errno.EMFILE, "Too many open files")

    bodies = SharedBodies(SIZE)
    monkeypatch.setattr(os, "memfd_create", lacking)
    with structlog.testing.capture_logs() as logs:
        assert bodies.lend() is None
    assert [log["event"] for log in logs] == ["no memory to share with a client"]
    assert list(bodies.pages) == [0]


def test_no_more_clients_are_lent_memory_than_files_are_left_for():
    bodies = SharedBodies(SIZE, most_lent=2)
    first = lent(bodies)
    lent(bodies)
    with structlog.testing.capture_logs() as logs:
        assert bodies.lend() is None
    assert [log["error"] for log in logs] == ["[Errno 24] The files left are for connections"]
    bodies.withdraw(first)
    lent(bodies)


@pytest.mark.parametrize(("files", "most"), [(1280, 80), (3328, 1088), (10**6, 499_424)])
def test_each_connection_can_still_be_opened_if_others_were_lent_memory(monkeypatch, files, most):
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (files, files))
    bodies = parts.shared_bodies(Limits(bytes=SIZE), 1024)
    assert bodies is not None
    assert bodies._most_lent == most


def test_memory_of_ended_bodies_beyond_what_is_kept_is_freed_in_time():
    bodies = SharedBodies(2 * KEPT_BYTES)
    held = [taken(bodies, KEPT_BYTES), taken(bodies)]
    held[1][:] = bytes(LEAST_BYTES)
    fd = bodies.pages[0].where["fd"]
    held.clear()
    assert os.fstat(fd).st_blocks
    bodies.tidy()
    assert os.fstat(fd).st_blocks
    bodies.tidy()
    assert not os.fstat(fd).st_blocks


def test_it_is_freed_as_well_where_no_worker_is_there(monkeypatch):
    monkeypatch.setattr(shared_bodies, "TIDY_S", 0.01)

    async def main() -> None:
        bodies = SharedBodies(2 * KEPT_BYTES)
        driver = Driver(shared=bodies)
        held = [taken(bodies, KEPT_BYTES), taken(bodies)]
        assert bodies._blocks.is_large
        await asyncio.sleep(0.05)
        assert bodies._blocks.is_large
        held.clear()
        while bodies._blocks.is_large:
            await asyncio.sleep(0.001)
        await driver.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_withdrawn_memory_is_freed():
    bodies = SharedBodies(SIZE)
    before = open_pages()
    for _ in range(10):
        bodies.withdraw(lent(bodies))
    gc.collect()
    assert open_pages() <= before  # of other tests' pages some may have been closed


def open_pages() -> set[int]:
    """The inodes of the pages that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "memfd:" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(os.fstat(int(name)).st_ino)
    return found

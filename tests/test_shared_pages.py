from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import subprocess
import sys

import pytest

from scheduler.own_pages import OwnPages
from scheduler.shared_pages import KEPT_BYTES, Blocks, opened

PAGE = mmap.PAGESIZE
READS = """
import json, sys
from scheduler.shared_pages import opened
pages = opened(json.loads(sys.argv[1]), writable=True)
print(bytes(pages.block(100, 5)).decode())
pages.block(200, 3)[:] = list(b"you")
"""


def used_bytes(pages):
    return os.fstat(pages.where["fd"]).st_blocks * 512


def test_another_process_reads_and_writes_the_same_memory():
    pages = OwnPages(PAGE)
    pages.block(100, 5)[:] = list(b"hello")
    where = str(pages.where).replace("'", '"')
    done = subprocess.run([sys.executable, "-c", READS, where], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("hello\n", "")
    assert bytes(pages.block(200, 3)) == b"you"


def test_what_is_opened_for_reading_can_not_be_written():
    pages = OwnPages(PAGE)
    block = opened(pages.where, writable=False).block(0, 10)
    assert not block.flags.writeable
    assert block.data.readonly


def test_nobody_can_make_it_smaller_under_its_readers():
    pages = OwnPages(PAGE)
    where = pages.where
    fd = os.open(f"/proc/{where['pid']}/fd/{where['fd']}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_something_else_at_that_place_is_not_even_opened(monkeypatch):
    pages, opens = OwnPages(PAGE), []
    monkeypatch.setattr(os, "open", lambda *args: opens.append(args))
    for lie in ({"inode": 1}, {"bytes": 2 * PAGE}, {"fd": 0}, {"pid": 2**22}):
        with pytest.raises(OSError, match="/proc/"):
            opened({**pages.where, **lie}, writable=True)
    assert opens == []


@pytest.mark.parametrize(
    "lie", [{"pid": None}, {"pid": "x"}, {"fd": 2**80}, {"bytes": float(PAGE)}, {"inode": []}]
)
def test_a_place_that_makes_no_sense_is_none(lie):
    with pytest.raises(OSError, match=r"where the memory is|/proc/"):
        opened({**OwnPages(PAGE).where, **lie}, writable=False)
    with pytest.raises(OSError, match="KeyError"):
        opened({}, writable=False)


def test_what_has_taken_its_place_meanwhile_is_not_mapped(monkeypatch):
    pages = OwnPages(PAGE)
    where, opens = pages.where, os.open

    def too_late(*args):
        pages.close()
        another.append(OwnPages(PAGE))
        assert another[0].where["fd"] == where["fd"]
        return opens(*args)

    another: list[OwnPages] = []
    monkeypatch.setattr(os, "open", too_late)
    with pytest.raises(FileNotFoundError, match="something else"):
        opened(where, writable=True)


def test_a_part_in_use_outlives_all_else():
    own = OwnPages(PAGE)
    fd = own.where["fd"]
    block = opened(own.where, writable=True).block(0, 3)
    block[:] = list(b"abc")
    del own
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert bytes(block) == b"abc"


def test_closed_memory_is_closed_once_and_for_new_readers_alone():
    own = OwnPages(PAGE)
    where, reader = own.where, opened(own.where, writable=False)
    own.close()
    own.close()
    own.block(0, 1)[0] = 7
    assert reader.block(0, 1)[0] == 7
    with pytest.raises(FileNotFoundError):
        opened(where, writable=False)


def test_blocks_never_overlap_and_leave_all_free_in_the_end():
    rng, pages = random.Random(1), OwnPages(64 * PAGE)
    blocks = Blocks(pages)
    taken: dict[int, int] = {}
    for _ in range(5_000):
        if rng.random() < 0.5 and taken:
            start = rng.choice(list(taken))
            del taken[start]
            blocks.give_back(start)
        else:
            size = rng.randint(1, 20 * PAGE)
            placed = blocks.take(size)
            gaps = range(0, pages.size, PAGE)
            fits = [
                gap
                for gap in gaps
                if gap + size <= pages.size
                and all(gap + size <= at or at + most <= gap for at, most in taken.items())
            ]
            assert placed == next(iter(fits), None)
            if placed is not None:
                taken[placed] = size + -size % PAGE
    for start in taken:
        blocks.give_back(start)
    assert blocks.take(pages.size) == 0


def test_what_is_not_taken_can_not_be_given_back():
    blocks = Blocks(OwnPages(2 * PAGE))
    start = blocks.take(10)
    assert start == 0
    blocks.give_back(start)
    with pytest.raises(KeyError):
        blocks.give_back(start)


def test_memory_beyond_what_is_kept_is_freed_once_it_is_not_used():
    pages = OwnPages(KEPT_BYTES + 20 * PAGE)
    blocks = Blocks(pages)

    def use(size: int) -> None:
        first, second = blocks.take(KEPT_BYTES), blocks.take(size)
        assert (first, second) == (0, KEPT_BYTES)
        pages.block(KEPT_BYTES, size)[:] = 1
        blocks.give_back(KEPT_BYTES)
        blocks.give_back(0)

    pages.block(0, 10 * PAGE)[:] = 1
    use(10 * PAGE)
    assert blocks.is_large
    for _ in range(3):  # in regular use, it need not be had from the kernel again
        blocks.free_unused()
        assert used_bytes(pages) == 20 * PAGE
        use(10 * PAGE)
    blocks.free_unused()
    use(4 * PAGE)
    blocks.free_unused()
    assert used_bytes(pages) == 14 * PAGE
    blocks.free_unused()
    assert used_bytes(pages) == 10 * PAGE
    assert not blocks.is_large


def test_memory_in_use_is_not_freed():
    pages = OwnPages(KEPT_BYTES + 2 * PAGE)
    blocks = Blocks(pages)
    taken = [blocks.take(KEPT_BYTES), blocks.take(PAGE), blocks.take(PAGE)]
    pages.block(KEPT_BYTES, 2 * PAGE)[:] = 7
    for start in taken[::2]:
        assert start is not None
        blocks.give_back(start)
    for _ in range(3):
        blocks.free_unused()
    assert set(pages.block(KEPT_BYTES, PAGE)) == {7}
    assert used_bytes(pages) == PAGE


def test_memory_that_the_process_has_locked_stays():
    pages = OwnPages(KEPT_BYTES + 2 * PAGE)
    blocks = Blocks(pages)
    _, second = blocks.take(KEPT_BYTES), blocks.take(PAGE)
    assert second is not None
    lock = ctypes.CDLL(None, use_errno=True).mlock
    assert lock(ctypes.c_void_p(pages.first_address + second), ctypes.c_size_t(PAGE)) == 0
    blocks.give_back(second)
    blocks.give_back(0)
    for _ in range(2):
        blocks.free_unused()
    assert blocks.take(KEPT_BYTES + PAGE) == 0

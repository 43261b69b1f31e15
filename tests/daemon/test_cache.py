"""The result cache without Redis: keys, values, memory, single flight, near frames."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config.cache import CacheConfig
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.signature import DTYPES, STRING, Signature, TensorSpec
from scheduler.daemon.cache.central import CentralCopy
from scheduler.daemon.cache.classes import CacheClass
from scheduler.daemon.cache.entries import BadValue, Kept, pack, unpack
from scheduler.daemon.cache.memory import MemoryTier
from scheduler.daemon.cache.near import NearFrames
from scheduler.daemon.cache.redis_link import OnReplies, RedisLink
from scheduler.daemon.cache.shared import redis_key
from scheduler.daemon.submission import Answer, Submission
from scheduler.wire import pack_tensors
from tests.daemon.cache_box import SECONDS, Box, a_box
from workers.link import ModelCard
from workers.model import CacheRules, NearRules

KEY = bytes(range(32))
OUTPUTS = {"y": TensorSpec("y", "float32", (None,))}
VARIANTS = frozenset(("v",))
GOOD = Kept([["y", "float32", [2]]], memoryview(bytes(8)), "v", "openvino")


def run(scene: Any, **settings: Any) -> None:
    async def play() -> None:
        async with a_box(**settings) as box:
            await scene(box)

    asyncio.run(play())


# -- what is kept


def test_a_value_says_what_was_kept() -> None:
    assert unpack(KEY, pack(KEY, GOOD), OUTPUTS, VARIANTS) == GOOD


@given(st.binary(max_size=200))
def test_bytes_that_are_no_value_are_refused(value: bytes) -> None:
    with pytest.raises(BadValue):
        unpack(KEY, value, OUTPUTS, VARIANTS)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_wrong_byte_is_noticed(place: int, change: int) -> None:
    value = bytearray(pack(KEY, GOOD))
    value[place % len(value)] ^= change
    with pytest.raises(BadValue):
        unpack(KEY, bytes(value), OUTPUTS, VARIANTS)


def test_a_well_made_value_must_still_answer_this_question() -> None:
    eight = memoryview(bytes(8))
    wrong = [
        Kept([["y", "float32", [2]]], eight, "w", "openvino"),
        Kept([["z", "float32", [2]]], eight, "v", "openvino"),
        Kept([["y", "int32", [2]]], eight, "v", "openvino"),
        Kept([["y", "float32", [1, 2]]], eight, "v", "openvino"),
        Kept([["y", "float32", [3]]], eight, "v", "openvino"),
        Kept([["y", "object", [1]]], eight, "v", "openvino"),
        Kept([["y", "float32", [-2]]], eight, "v", "openvino"),
        Kept([], memoryview(b""), "v", "openvino"),
        Kept([["y", "float32", [2]]], eight, "v", "x" * 1000),
    ]
    for kept in wrong:
        with pytest.raises(BadValue):
            unpack(KEY, pack(KEY, kept), OUTPUTS, VARIANTS)
    two = {**OUTPUTS, "z": TensorSpec("z", "float32", (2,))}
    twice = Kept([["y", "float32", [2]]] * 2, memoryview(bytes(72)), "v", "openvino")
    with pytest.raises(BadValue, match="other tensors"):
        unpack(KEY, pack(KEY, twice), two, VARIANTS)
    with pytest.raises(BadValue, match="checksum"):
        unpack(bytes(32), pack(KEY, GOOD), OUTPUTS, VARIANTS)
    with pytest.raises(BadValue, match="format 2"):
        unpack(KEY, msgpack.packb([2, "v", "r", [], 0, b""]), OUTPUTS, VARIANTS)


def test_texts_that_lie_alike_in_the_body_are_other_questions() -> None:
    text = Signature((TensorSpec("a", STRING, ()), TensorSpec("b", STRING, ())), (), False)
    card = ModelCard("m", "digest", text, ("v",), 1)
    rules = CacheRules(ttl_s=None, max_kb=None, near=None)
    kept = {}
    for a, b in (("x" * 64, "y" * 128), ("x" * 64 + "y" * 64, "y" * 64)):
        specs, buffers = pack_tensors({"a": np.array(a), "b": np.array(b)})
        found = CacheClass(RequestClass("m"), [], card, rules, CacheConfig())
        kept[found.key(specs, memoryview(b"".join(buffers)))] = bytes(b"".join(buffers))
    assert len(kept) == 2
    assert len(set(kept.values())) == 1


def test_a_text_has_one_name_whichever_came_first() -> None:
    text = Signature((TensorSpec("a", STRING, ()),), (), False)
    card, rules = ModelCard("m", "digest", text, ("v",), 1), CacheRules()
    asked = [pack_tensors({"a": np.array(a)}) for a in ("short", "not so short", "long" * 9)]
    names = set()
    for first, _ in asked:
        box = CacheClass(RequestClass("m"), first, card, rules, CacheConfig())
        names |= {box.key(specs, memoryview(b"".join(buffers))) for specs, buffers in asked}
    assert len(names) == len(asked)


def test_memory_is_bounded_by_bytes_and_the_least_recently_used_leave() -> None:
    memory = MemoryTier(3 * GOOD.size)
    for name in b"abc":
        memory.put(bytes([name]), GOOD, 100, 0)
    assert memory.get(b"a", 1) is GOOD
    memory.put(b"d", GOOD, 100, 1)
    assert [key in memory for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert (memory.bytes, memory.evicted, len(memory)) == (3 * GOOD.size, 1, 3)
    memory.put(b"a", GOOD, 200, 1)
    assert memory.get(b"c", 100) is None
    assert (memory.stale, memory.bytes) == (1, 2 * GOOD.size)
    memory.put(b"e", Kept([], memoryview(bytes(4 * GOOD.size)), "v", "r"), 100, 1)
    assert (b"e" in memory, len(memory)) == (False, 2)


def test_what_is_too_old_leaves_memory_though_nobody_asks_for_it() -> None:
    memory = MemoryTier(100 * GOOD.size)
    for number in range(50):
        memory.put(bytes([number]), GOOD, number + 10, number)
        assert len(memory) <= 10
    assert memory.bytes == 10 * GOOD.size


# -- hits and misses


def test_the_second_who_asks_gets_what_was_kept() -> None:
    async def scene(box: Box) -> None:
        first = await box.ask([1, 2]).good()
        again = box.ask([1, 2])
        assert again.answers, "a hit is answered at once"
        hit = await again.good()
        assert (first.target, first.cache, hit.target, hit.cache) == (
            "cpu:0",
            "miss",
            "cache",
            "hit",
        )
        assert hit.timing_ns[:3] == (0, 0, 0)
        assert hit.timing_ns[3] >= 0
        assert (box.ran, box.counts["hits"]["memory"], box.counts["misses"]) == (1, 1, 1)
        assert await box.ask([1, 3]).target() == "cpu:0"

    run(scene)


def test_an_answer_that_is_late_is_for_those_who_take_it() -> None:
    async def scene(box: Box) -> None:
        await box.ask([1]).good()
        late = box.ask([1], deadline_ms=0, late=True)
        assert (await late.answer()).outcome is Outcome.LATE
        assert late.answers[0].target == "cache"
        assert (await box.ask([1], deadline_ms=0).answer()).outcome is Outcome.EXPIRED

    run(scene)


def test_what_could_be_another_answer_is_another_question() -> None:
    x = np.zeros(4, np.float32)

    async def scene(box: Box) -> None:
        kind = box.ask(x).submission.kind
        specs, buffers = pack_tensors({"x": x})
        body = memoryview(b"".join(buffers))
        classes = box.cache._classes
        keys = set()
        for shapes, variant in (((4,), None), ((2, 2), None), ((4,), "v"), ((4,), "w")):
            specs = [["x", "float32", list(shapes)]]
            found = classes.of(kind._replace(shapes=(shapes,), variant=variant), specs)
            assert found is not None
            keys.add(found.key(specs, body))
        box.driver.catalog.learn("cpu:0", [replace(box.card, digest="d2")], [])
        found = classes.of(kind, [["x", "float32", [4]]])
        assert found is not None
        keys.add(found.key(specs, body))
        assert len(keys) == 5

    run(scene)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"rules": None}, "model"),
        ({"digest": ""}, "model"),
        ({"max_input_kb": 1}, "size"),
    ],
)
def test_what_is_not_for_the_cache_goes_past_it(settings: dict[str, Any], why: str) -> None:
    x = np.zeros(300, np.float32)

    async def scene(box: Box) -> None:
        for _ in range(2):
            assert await box.ask(x).target() == "cpu:0"
        assert box.counts["skipped"][why] == 2
        cancelled = box.ask(x)
        box.cache.cancel(cancelled.id)
        assert (await cancelled.answer()).outcome is Outcome.CANCELLED

    run(scene, **settings)


def test_answers_that_are_too_large_or_too_old_are_not_given_again() -> None:
    async def too_large(box: Box) -> None:
        for _ in range(2):
            assert await box.ask(np.zeros(300)).target() == "cpu:0"
        assert await box.ask(np.zeros(30)).target() == "cpu:0"
        assert await box.ask(np.zeros(30)).target() == "cache"

    async def too_old(box: Box) -> None:
        assert await box.ask([1]).target() == "cpu:0"
        assert await box.ask([1]).target() == "cpu:0"
        assert box.counts["stale"] == 1

    run(too_large, rules=CacheRules(max_kb=1))
    run(too_old, rules=CacheRules(ttl_s=1e-9))


def test_answers_of_emulated_devices_and_other_files_are_not_kept() -> None:
    async def scene(box: Box) -> None:
        found = box.cache._classes.of(box.ask([1]).submission.kind, [["x", "float32", [1]]])
        assert found is not None
        may_keep = partial(box.cache._classes.may_keep, found)
        assert may_keep("cpu:0", "openvino", "d1")
        assert may_keep("far/cpu:0", "openvino", "d1")
        assert not may_keep("cpu:0", "emulated", "d1")
        assert not may_keep("cpu:0", "openvino", "d2")
        assert not may_keep("far/cpu:0", "openvino", "")
        # For as long again as it was kept there it would be an answer for ever.
        for kept in ("cache", "cache (near)", "cache (running)"):
            assert not may_keep(f"far/{kept}", "openvino", "d1")

    run(scene)


def test_an_answer_of_new_files_is_not_kept_for_the_old_ones() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked = box.ask([1])
        await box.until(lambda: box.runs)
        box.driver.catalog.learn("cpu:0", [replace(box.card, digest="d2")], [])
        box.worker.finish()
        assert (await asked.good()).digest == "d2"
        assert box.counts["stored"] == 0

    run(scene)


# -- one run for all who ask the same


def test_who_asks_the_same_meanwhile_waits_for_that_run() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        first = box.ask([1])
        others = [*box.ask_all([[1]] * 3), box.ask([1], deadline_ms=30_000)]
        other = box.ask([2])
        await box.until(lambda: len(box.runs) >= 1)
        while box.ran < 2:
            await box.until(lambda: box.runs)
            box.worker.finish()
        assert await first.target() == "cpu:0"
        assert await other.target() == "cpu:0"
        for one in others:
            answer = await one.good()
            assert answer.target == "cache (running)"
            assert answer.timing_ns[0] == answer.timing_ns[3] > 0
        assert box.ran == 2
        assert box.counts["held"] == 0

    run(scene)


@pytest.mark.parametrize(
    "how", [{"deadline_ms": 5_000}, {"priority": 0}, {"weight": 9.0}, {}], ids=str
)
def test_nobody_waits_for_one_who_may_be_served_later(how: dict[str, Any]) -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        first = box.ask([1], late=not how)
        second = box.ask([1], **how)
        await finish_all(box, first, second)
        assert [await first.target(), await second.target()] == ["cpu:0", "cpu:0"]
        assert box.ran == 2

    run(scene)


async def finish_all(box: Box, *asked: Any) -> None:
    while not all(one.answers for one in asked):
        await box.until(lambda: box.runs or all(one.answers for one in asked))
        if box.runs:
            box.worker.finish()


def test_a_cancelled_leader_leaves_the_run_to_the_others() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        first, second, third = box.ask_all([[1]] * 3)
        box.cache.cancel(first.id)
        assert (await first.answer()).outcome is Outcome.CANCELLED
        box.cache.cancel(third.id)
        assert (await third.answer()).outcome is Outcome.CANCELLED
        box.cache.cancel(third.id)
        await finish_all(box, second)
        assert await second.target() == "cache (running)"
        assert box.ran == 1
        assert (await box.ask([1]).good()).cache == "hit"

    run(scene)


def test_a_run_that_nobody_waits_for_is_cancelled() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked = box.ask_all([[1]] * 3)
        for one in asked:
            box.cache.cancel(one.id)
            assert (await one.answer()).outcome is Outcome.CANCELLED
        assert box.driver.status()["held"] == box.counts["held"] == 0
        assert box.driver.status()["outcomes"]["cancelled"] == 1

    run(scene)


def test_followers_of_a_failed_leader_go_on_by_themselves() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked = box.ask_all([[1]] * 3)
        await box.until(lambda: box.runs)
        box.worker.finish("out of memory")
        first = await asked[0].answer()
        assert (first.outcome, first.outputs) == (Outcome.FAILED, None)
        await finish_all(box, *asked)
        for one in asked[1:]:
            assert await one.target() == "cpu:0"

    run(scene)


def test_followers_of_a_refused_leader_go_on_by_themselves() -> None:
    async def scene(box: Box) -> None:
        refused, wanted = box.ask_all([[1]], deadline_ms=200) + box.ask_all([[1]])
        assert (await refused.answer()).outcome is Outcome.INFEASIBLE
        assert await wanted.target() == "cpu:0"

    run(scene, run_ms=400)


def test_an_answer_with_notes_is_passed_on_with_them_and_not_kept() -> None:
    async def scene(box: Box) -> None:
        notes = {"payload": "float16"}
        noted = partial(box.driver.on_done, notes=notes)
        with patch.object(box.driver, "on_done", noted):
            for one in box.ask_all([[1]] * 2):
                assert (await one.good()).notes == notes
        assert await box.ask([1]).target() == "cpu:0"
        assert await box.ask([1]).target() == "cache"

    run(scene)


def test_who_wants_an_exact_answer_does_not_wait_for_one_that_may_not_be() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        loose, exact, another = box.ask([1]), box.ask([1], exact=True), box.ask([1])
        assert [box.ran, box.counts["held"]] == [0, 3]
        box.holds = False
        await finish_all(box, loose, exact, another)
        assert box.ran == 2
        assert [await a.target() for a in (exact, another)] == ["cpu:0", "cache (running)"]
        # What is kept came about from the very inputs, and is good for everybody.
        assert await box.ask([1], exact=True).target() == "cache"

    run(scene)


@pytest.mark.parametrize("how", ["alone", "together", "cancelled"])
def test_the_tensors_of_an_answered_request_are_freed_at_once(how: str) -> None:
    async def scene(box: Box) -> None:
        answers: list[Answer] = []

        def ask(x: Any) -> list[int]:
            deadline_ns = box.driver.clock_ns() + 20 * SECONDS
            kind, specs = RequestClass("m", None, ((1,),)), [["x", "float32", [1]]]
            body, reply = x.data.cast("B"), answers.append
            one = Submission(kind, specs, body, deadline_ns, 3, 1.0, False, reply)
            return box.cache.submit([one] if how == "alone" else [one, replace(one)])

        x = np.ones(1, np.float32)
        ids, kept = ask(x), weakref.ref(x)
        del x
        if how == "cancelled":
            box.cache.cancel(ids[0])
        await box.until(lambda: len(answers) == len(ids))
        assert kept() is None

    gc.disable()
    try:
        run(scene)
    finally:
        gc.enable()


def test_draining_answers_all_who_wait() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked = box.ask_all([[1]] * 3)
        box.cache.settle()
        assert await box.driver.drain(0.01) == 1
        ends = [await one.answer() for one in asked]
        outcomes = [Outcome.CANCELLED, Outcome.UNAVAILABLE, Outcome.UNAVAILABLE]
        assert [end.outcome for end in ends] == outcomes
        assert ends[0].reason == "the box shut down before it was done"

    run(scene)


actions = st.lists(
    st.tuples(st.sampled_from(["ask", "urgent", "cancel", "finish", "fail"]), st.integers(0, 2)),
    max_size=25,
)


@given(actions)
def test_every_request_is_answered_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked: list[Any] = []
        for what, number in steps:
            if what == "ask":
                asked += box.ask_all([[number]] * 2)
            elif what == "urgent":
                asked.append(box.ask([number], deadline_ms=10_000))
            elif what == "cancel" and asked:
                box.cache.cancel(asked[number % len(asked)].id)
            elif box.runs:
                box.worker.finish("no" if what == "fail" else None)
            for _ in range(4):
                await asyncio.sleep(0)
        box.holds = False
        await finish_all(box, *asked)
        await asyncio.sleep(0)
        assert all(len(one.answers) == 1 for one in asked)
        assert box.counts["held"] == box.driver.status()["held"] == 0
        assert not box.cache._flights

    run(scene)


# -- frames that are nearly the same


def test_a_near_frame_gets_the_answer_and_is_told_so() -> None:
    frame = np.linspace(0, 1, 64, dtype=np.float32)

    async def scene(box: Box) -> None:
        assert await box.ask(frame).target() == "cpu:0"
        near = await box.ask(frame + np.float32(0.009)).answer()
        assert (near.target, near.cache, near.outcome) == ("cache (near)", "hit", Outcome.COMPLETED)
        # What was answered so is nobody's measure: the bound holds against the frame that ran.
        assert await box.ask(frame + np.float32(0.018)).target() == "cpu:0"
        assert box.counts["hits"]["near"] == 1
        assert await box.ask(frame + np.float32(0.001), exact=True).target() == "cpu:0"

    run(scene, rules=CacheRules(near=NearRules(0.01, ttl_s=60)))


@given(
    st.sampled_from([*DTYPES]),
    st.lists(st.integers(0, 40), max_size=4).map(tuple),
    st.integers(1, 20),
)
def test_every_frame_is_near_itself(dtype: str, shape: tuple[int, ...], blocks: int) -> None:
    frames = NearFrames(NearRules(1e-3, 1.0, blocks), dtype, shape)
    body = memoryview(np.ones(shape, dtype).tobytes())
    found = frames.blocks(body)
    np.testing.assert_allclose(found, 1.0)
    frames.add(found, KEY, 0)
    assert frames.find(frames.blocks(body), 10**9 - 1) == KEY
    assert frames.find(frames.blocks(body), 10**9) is None


def test_one_block_that_moved_is_enough() -> None:
    frames = NearFrames(NearRules(2.0), "uint8", (64, 64, 3))
    frame = np.full((64, 64, 3), 100, np.uint8)
    frames.add(frames.blocks(memoryview(frame.tobytes())), KEY, 0)
    frame[:4, :4, 1] += 2
    assert frames.find(frames.blocks(memoryview(frame.tobytes())), 1) == KEY
    frame[:4, :4, 1] += 1
    assert frames.find(frames.blocks(memoryview(frame.tobytes())), 1) is None


def test_a_frame_with_nan_is_near_nothing() -> None:
    frames = NearFrames(NearRules(9.0), "float32", (2,))
    body = memoryview(np.array([np.nan, 1], np.float32).tobytes())
    frames.add(frames.blocks(body), KEY, 0)
    assert frames.find(frames.blocks(body), 1) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80))
def test_of_several_near_frames_the_latest_answers(frames: list[int]) -> None:
    near = NearFrames(NearRules(0.5, ttl_s=1.0), "int32", (3,))
    last: dict[int, bytes] = {}
    for time_ns, number in enumerate(frames):
        body = memoryview(np.full(3, number, np.int32).tobytes())
        last[number] = b"%d" % time_ns
        near.add(near.blocks(body), last[number], time_ns)
        assert near.find(near.blocks(body), time_ns) == last[number]
    for number in range(10):
        body = memoryview(np.full(3, number, np.int32).tobytes())
        found = near.find(near.blocks(body), len(frames))
        assert found == (last[number] if number in frames[-32:] else None)


@pytest.mark.parametrize("how", ["no room", "removed in Redis"])
def test_an_answer_that_is_no_longer_kept_serves_no_near_frame(how: str) -> None:
    frame = np.linspace(0, 1, 150_000, dtype=np.float32)

    async def scene(box: Box) -> None:
        assert await box.ask(frame).target() == "cpu:0"
        assert (await box.ask(frame + np.float32(0.009)).answer()).target == "cache (near)"
        if how == "no room":
            assert await box.ask(frame + np.float32(9)).target() == "cpu:0"
            assert (box.counts["entries"], box.counts["evicted"]) == (1, 1)
        else:
            box.cache._memory.clear()
        assert await box.ask(frame + np.float32(0.009)).target() == "cpu:0"

    run(scene, rules=CacheRules(near=NearRules(0.01, ttl_s=60)), max_mb=1)


# -- the central copy


class CentralLink:
    """A link that notes what it is given to send."""

    def __init__(self) -> None:
        self.open = False
        self.sent: list[tuple[list[Any], OnReplies]] = []

    def send(self, commands: list[Any], on_replies: OnReplies) -> None:
        self.sent.append((commands, on_replies))


def a_central() -> tuple[CentralCopy, CentralLink]:
    central, link = CentralCopy("redis://127.0.0.1:1/0", 10**8), CentralLink()
    central.link = cast(RedisLink, link)
    return central, link


def test_what_waited_too_long_for_a_central_redis_does_not_lose_it() -> None:
    async def scene() -> None:
        central, link = a_central()
        for number in range(50_000):
            central.put("m", number.to_bytes(32, "big"), b"old", 0)
        central.put("m", KEY, b"new", 60_000)
        link.open = True
        central.on_open()
        (((command,), _),) = link.sent
        assert command[:3] == ("SET", redis_key("m", KEY), b"new")
        assert (central.dropped, central.waiting_bytes) == (50_000, 0)

    asyncio.run(scene())


@pytest.mark.parametrize(("size", "at_once"), [(100, 32), (100_000, 2), (1_000_000, 1)])
def test_a_central_redis_gets_no_more_at_once_than_a_slow_way_takes(
    size: int, at_once: int
) -> None:
    async def scene() -> None:
        central, link = a_central()
        for number in range(40):
            central.put("m", number.to_bytes(32, "big"), bytes(size), 60_000)
        waiting_bytes = central.waiting_bytes
        assert waiting_bytes >= 40 * size
        link.open = True
        central.on_open()
        commands, on_replies = link.sent[-1]
        assert len(commands) == at_once
        on_replies(None)
        assert central.waiting_bytes == waiting_bytes
        central.on_open()
        while central.written < 40:
            commands, on_replies = link.sent[-1]
            on_replies([b"OK"] * len(commands))
        assert (central.waiting_bytes, central.dropped) == (0, 0)

    asyncio.run(scene())


@pytest.mark.parametrize("size", [10, 1_000, 100_000])
def test_what_waits_for_a_central_redis_takes_no_more_memory_than_it_may(size: int) -> None:
    async def scene() -> None:
        most_bytes = 2_000_000
        central = CentralCopy("redis://127.0.0.1:1/0", most_bytes)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            while not central.dropped:
                central.put("m", os.urandom(32), bytes(size), 60_000)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most_bytes / 2 < after - before <= most_bytes

    asyncio.run(scene())


def test_an_answer_that_never_arrives_at_a_central_redis_keeps_no_other_from_it() -> None:
    async def scene() -> None:
        central, link = a_central()
        for number, size in enumerate((5_000_000, 100, 100)):
            central.put("m", number.to_bytes(32, "big"), bytes(size), 3_600_000)
        link.open = True
        while central.waiting_bytes or central._sending:
            assert len(link.sent) < 10, "it is sent for ever"
            central.on_open()
            commands, on_replies = link.sent[-1]
            arrives = sum(len(value) for _, _, value, *_ in commands) < 1_000_000
            on_replies([b"OK"] * len(commands) if arrives else None)
        assert (central.written, central.dropped) == (2, 1)

    asyncio.run(scene())

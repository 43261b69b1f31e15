"""Boxes on one virtual clock: they meet, share work, lose each other and are whole again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.address import Address
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.daemon.neighbours import members, pings
from scheduler.daemon.neighbours.neighbours import Neighbours
from scheduler.daemon.neighbours.peer_link import PeerLink
from scheduler.daemon.submission import Answer, Submission
from scheduler.daemon.ways import meter
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.samples import ROUND_TRIPS
from scheduler.errors import DeadlineExpired
from scheduler.policy_loading import NamedPolicy
from scheduler.tenants import OWNER, Access, hash_of
from scheduler.wire import FrameLimits
from tests.neighbours.boxes import ACCESS, MS, TOKEN, WIDE, Box, MadeUpDevice, X, card, until
from tests.neighbours.virtual_loop import run_virtually

CAPACITY = 8 / 0.06
"""Requests per second of one box: its largest batches, one after the other."""


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run


@asynccontextmanager
async def site(*boxes: Box) -> AsyncIterator[list[Box]]:
    """Boxes that each know all others; afterwards every request has ended once."""
    for number, box in enumerate(boxes):
        box.join_at(boxes[:number])
        await box.start()
    try:
        await until(lambda: all(whole(box, boxes) for box in boxes))
        yield list(boxes)
    finally:
        for box in boxes:
            await box.stop()
    for box in boxes:
        assert sum(box.endings.values()) == box.asked
        assert box.driver.core.ledger.records == {}
        box.driver.core.validate()


def whole(box: Box, boxes: Any) -> bool:
    return box.states() == {other.name: "up" for other in boxes if other is not box}


def forwarded(box: Box) -> int:
    return sum(t.get("forwarded", 0) for t in box.driver.status()["targets"])


def link_to_b(box: Box) -> PeerLink:
    link = box.driver._linked["b"].link
    assert isinstance(link, PeerLink)
    return link


@virtually
async def test_boxes_that_know_one_member_come_to_know_all():
    a, b, c = Box("a"), Box("b"), Box("c")
    await a.start()
    b.join_at([a])
    await b.start()
    c.join_at([b])
    await c.start()
    await until(lambda: all(whole(box, (a, b, c)) for box in (a, b, c)), 5)
    assert not any(box.neighbours.describe()["alone"] for box in (a, b, c))
    for box in (a, b, c):
        await box.stop()


@virtually
async def test_what_a_box_can_not_do_in_time_another_one_does():
    async with site(Box("a"), Box("b")) as (a, b):
        await a.load(1.5 * CAPACITY, 2, 300)
        assert a.on_time > 0.95
        assert a.places["b/cpu:0"] == b.device.ran > 100


@virtually
async def test_energy_is_told_to_other_boxes_and_costs_what_it_does_where_a_request_came_in():
    a, b = Box("a", policy=NamedPolicy("cheapest", {}), cost_per_kwh=0.36), Box("b")
    a.device.energy_uj, b.device.energy_uj = {1: 20_000, 8: 80_000}, {1: 5_000}
    async with site(a, b):
        await a.load(5, 2, 400)
        told = {target["id"]: target for target in a.driver.status()["targets"]}
        assert a.places["b/cpu:0"] > 0.9 * a.asked, "where it takes least"
        assert told["b"]["energy"]["joules"] == pytest.approx(0.005 * a.places["b/cpu:0"])
        assert told["b"]["energy"]["cost"] == pytest.approx(told["b"]["energy"]["joules"] * 1e-7)
        assert told["cpu:0"]["costs"]["cost_per_kwh"] == 0.36
        await b.load(5, 1, 400)
        told = {target["id"]: target for target in b.driver.status()["targets"]}
        assert told["cpu:0"]["energy"]["joules"] > 0, "measured, though it has no price"
        assert told["cpu:0"]["energy"]["cost"] == 0


@virtually
async def test_a_device_without_a_counter_says_so():
    async with site(Box("a", cost_per_kwh=0.36)) as (a,):
        await a.load(5, 1, 400)
        (told,) = a.driver.status()["targets"]
        assert told["energy"] is None


@pytest.mark.parametrize("policy", ["goodput", "spill"])
@virtually
async def test_three_boxes_with_the_load_on_one_are_nearly_as_good_as_one_of_their_size(policy):
    per_s, budget_ms = 3 * 0.9 * CAPACITY, 300
    alone = Box("big")
    for number in (1, 2):
        device = MadeUpDevice(f"cpu:{number}", {"m": "d"}, alone.driver, alone.loop)
        alone.driver.add_target(device.device_id, device)
    async with site(alone):
        await alone.load(per_s, 2, budget_ms)
    boxes = [Box(name, policy=NamedPolicy(policy, {})) for name in "abc"]
    async with site(*boxes) as (a, _, _):
        await a.load(per_s, 2, budget_ms)
    assert alone.on_time > 0.99
    assert a.on_time >= 0.9 * alone.on_time


@pytest.mark.parametrize("policy", ["goodput", "spill"])
@virtually
async def test_a_load_on_every_box_stays_there(policy):
    boxes = [Box(name, policy=NamedPolicy(policy, {})) for name in "abc"]
    async with site(*boxes):
        await asyncio.gather(*(b.load(0.9 * CAPACITY, 2, 300, seed=i) for i, b in enumerate(boxes)))
        for box in boxes:
            assert box.on_time > 0.98
            assert forwarded(box) < 0.05 * box.asked


@virtually
async def test_many_boxes_share_the_overflow_of_one_and_none_of_them_gets_a_herd():
    boxes = [Box(f"b{number}") for number in range(8)]
    async with site(*boxes) as (a, *others):
        await a.load(4 * CAPACITY, 2, 300)
        ran = [box.device.ran for box in others]
        assert a.on_time > 0.95
        assert max(ran) < 2 * sum(ran) / len(ran)


@virtually
async def test_the_overflow_of_many_does_not_flood_the_one_that_is_free():
    boxes = [Box(f"b{number}") for number in range(5)]
    async with site(*boxes) as (free, *others):
        loads = [b.load(1.5 * CAPACITY, 4, 300, seed=i) for i, b in enumerate(others)]
        await asyncio.gather(free.load(0.3 * CAPACITY, 4, 300, seed=9), *loads)
        assert free.on_time > 0.7, "six times its own load is offered to it"
        done = sum(box.endings["completed"] for box in boxes)
        assert done > 0.85 * 5 * CAPACITY * 4


@virtually
async def test_a_model_that_only_another_box_has_can_be_asked_for_and_is_forwarded_once():
    async with site(Box("a", models={}), Box("b", models={"m": "d"})) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        a.ask(300)
        await until(lambda: a.places["b/cpu:0"] == 1)
        a.ask(300, local=True)
        assert a.endings["unavailable"] == 1, "what came from another box stays here"
        assert forwarded(b) == 0


@virtually
async def test_a_box_that_has_nothing_to_offer_says_so_from_the_beginning():
    async with site(Box("a"), Box("b", models={})) as (a, _):
        await until(lambda: link_to_b(a)._known.models == set() and "b" in a.states())
        await asyncio.sleep(1)
        (told,) = [target for target in a.driver.status()["targets"] if target["id"] == "b"]
        assert not told["up"]
        assert told["progress"]["text"] == (
            "box b: it offers nothing at present that can be used from here"
        )


@virtually
async def test_a_model_of_the_same_name_but_with_other_files_is_not_the_same():
    async with site(Box("a", models={"m": "one"}), Box("b", models={"m": "two"})) as (a, b):
        await a.load(2 * CAPACITY, 1, 300)
        assert set(a.places) == {"cpu:0"}
        assert b.device.ran == 0
        problems = a.driver.catalog.describe()["problems"]
        assert any(p["device"] == "b" and "a different one" in p["reason"] for p in problems)


@virtually
async def test_a_model_whose_files_change_here_is_said_to_differ_until_they_change_back():
    async with site(Box("a"), Box("b")) as (a, b):
        await a.load(2 * CAPACITY, 1, 300)
        ran = b.device.ran
        assert ran > 0

        def problems() -> list[Any]:
            told = a.driver.catalog.describe()["problems"]
            return [p["model"] for p in told if p["device"] == "b"]

        a.driver.on_catalog("cpu:0", [card("m", "other files")], [])
        await until(lambda: problems() == ["m"])
        await until(lambda: "offers nothing" in str(a.driver.status()["targets"]))
        completed = a.endings["completed"]
        a.ask(300)
        await until(lambda: a.endings["completed"] == completed + 1)
        assert b.device.ran == ran

        a.driver.on_catalog("cpu:0", [card("m")], [])
        await until(lambda: problems() == [])
        await until(lambda: a.driver.core.targets["b"].up)


@virtually
async def test_a_model_that_only_other_boxes_have_is_used_with_new_files_too():
    async with site(Box("a", models={}), Box("b"), Box("c")) as (a, b, c):
        await until(lambda: {"b", "c"} <= a.driver.core.targets.keys())

        def differ() -> list[str]:
            return [p["device"] for p in a.driver.catalog.describe()["problems"]]

        b.driver.on_catalog("cpu:0", [card("m", "new files")], [])
        await until(lambda: differ() == ["b"])
        c.driver.on_catalog("cpu:0", [card("m", "new files")], [])
        await until(lambda: differ() == [])
        assert a.driver.catalog.cards["m"].digest == "new files"
        await until(lambda: all(a.driver.core.targets[box].up for box in "bc"))
        a.ask(300)
        await until(lambda: a.endings["completed"] == 1)


@virtually
async def test_the_files_of_a_box_that_is_gone_speak_against_no_others():
    async with site(Box("a", models={}), Box("b"), Box("c")) as (a, b, c):
        await until(lambda: {"b", "c"} <= a.driver.core.targets.keys())
        c.driver.on_catalog("cpu:0", [card("m", "new files")], [])
        await until(lambda: a.driver.catalog.describe()["problems"])
        b.cable.pull()
        await until(lambda: not a.driver.catalog.describe()["problems"])
        a.ask(300)
        await until(lambda: a.places["c/cpu:0"] == 1)
        b.cable.mend()


@virtually
async def test_an_answer_of_another_box_names_the_files_that_gave_it():
    """While a model is replaced there, one device has the new files and another the old ones."""
    async with site(Box("a", {}), Box("b")) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        for digest in ("d", "new"):
            b.driver.catalog.learn("cpu:1", [card("m", digest)], [])
            await until(lambda: a.driver.catalog.digest("b", "m") == digest)  # noqa: B023
            a.last = None
            a.ask(300)
            await until(lambda: a.last is not None)
            assert a.last is not None
            assert (a.last.target, a.last.digest) == ("b/cpu:0", "d")


@virtually
async def test_what_another_box_answers_has_to_be_what_the_model_gives():
    async with site(Box("a", models={}), Box("b")) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        lies: list[Any] = [
            3,
            [["y", "float32", [4]]],
            [["x", "float32", [5]]],
            [[[], "float32", [4]]],
        ]
        for lie in lies:
            b.device.says = lie
            a.ask(300)
            await until(lambda: not a.driver.core.ledger.records)
        assert a.endings == {"failed": len(lies)}
        b.device.says = None
        a.ask(300)
        await until(lambda: a.endings["completed"] == 1)


@virtually
async def test_no_time_that_another_box_states_keeps_an_answer_from_its_caller(
    monkeypatch: pytest.MonkeyPatch,
):
    async with site(Box("a", models={}), Box("b")) as (a, _):
        await until(lambda: "b" in a.driver.core.targets)
        say = Answer.header
        for timing in ([0, 0, 2**64 - 1, 1], [0, 0, -(2**63), 1], [0, 0, 1, -(2**63)]):
            monkeypatch.setattr(Answer, "header", lambda self, t=timing: {**say(self), "timing": t})
            a.ask(300)
            await until(lambda: not a.driver.core.ledger.records)
            assert a.last is not None
            assert all(0 <= ns <= 300_000_000 for ns in a.last.timing_ns), timing
            round_trip_ms = link_to_b(a).describe()["way"]["round_trip_ms"]
            assert 0 <= round_trip_ms < 300
        assert a.endings["completed"] == 3


@virtually
async def test_a_way_that_was_slow_once_is_measured_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meter, "BULK_BYTES", 16)  # made-up requests are small
    async with site(Box("a", models={}), Box("b")) as (a, b):
        await asyncio.sleep(1)
        for _ in range(ROUND_TRIPS):
            link_to_b(a)._meter.carried(100_000, 0, 10**13)
        await asyncio.sleep(1)
        a.ask(300)
        assert a.endings["infeasible"] == 1
        await asyncio.sleep(meter.BULK_NS / 1e9)
        for _ in range(100):
            a.ask(300)
            await asyncio.sleep(0.1)
        assert (b.device.measured, a.device.measured) == (0, 0)
        assert a.endings["completed"] > 80
        assert forwarded(a) == a.endings["completed"], "no request was staked on it"


@virtually
async def test_measuring_a_slow_way_again_sends_no_more_than_it_carries_in_a_moment():
    async with site(Box("a", models={}), Box("b", body_bytes=10_000_000)) as (a, b):
        await asyncio.sleep(3)
        link = link_to_b(a)
        for _ in range(ROUND_TRIPS):
            link._meter.carried(100_000, 0, 10**9)  # 10 us for each byte
        before = link._meter.sent_bytes
        body = memoryview(bytes(5_000_000))
        kind = RequestClass("m", None, ((4,),))
        refused = Submission(kind, X, body, 0, 3, 1.0, False, lambda _: None)
        link.measure_again(b.device.spec().offers[0], refused)
        await until(lambda: link._meter.sent_bytes > before)
        assert (link._meter.sent_bytes - before) * 10_000 <= 50_000_000


def wide_boxes() -> tuple[Box, Box]:
    """One that is asked for large answers to large requests, and another that gives them."""
    near = Box("a", models={}, body_bytes=2_000_000)
    far = Box("b", models={"wide": "d"}, body_bytes=2_000_000)
    near.cable.mbps = far.cable.mbps = 20
    return near, far


@pytest.mark.parametrize("budget_ms", [400, 700, 1_300])
@virtually
async def test_no_request_is_staked_on_a_way_that_is_too_slow_for_it(budget_ms: float):
    """It and its answer take 480 ms each, and the device 25."""
    async with site(*wide_boxes()) as (a, _):
        await asyncio.sleep(3)
        for _ in range(100):
            a.ask(budget_ms, model="wide")
            await asyncio.sleep(1)
        outcome = "completed" if budget_ms > 2 * 480 + 25 else "infeasible"
        assert a.endings[outcome] > 90  # a busy machine may make the way look different
        assert link_to_b(a)._meter.describe()["bandwidth_mbps"] == pytest.approx(20, rel=0.1)


@virtually
async def test_few_requests_are_staked_on_a_way_that_has_become_slower():
    """What took 100 ms there and as long back takes 1,000."""
    near, far = wide_boxes()
    near.cable.mbps = far.cable.mbps = 100
    async with site(near, far) as (a, b):
        await asyncio.sleep(3)
        for second in range(40):
            if second == 20:
                a.cable.mbps = b.cable.mbps = 10
            a.ask(700, model="wide")
            await asyncio.sleep(1)
        assert a.endings["completed"] == 20
        assert a.endings["expired"] < 8
        assert a.endings["infeasible"] > 12


@virtually
async def test_what_may_be_late_is_sent_where_it_will_be():
    """It starts there within its budget, and is back 185 ms later."""
    async with site(*wide_boxes()) as (a, _):
        await asyncio.sleep(3)
        for _ in range(5):
            a.ask(800, model="wide", late=True)
            await asyncio.sleep(2)
        assert a.endings == {"late": 5}


@virtually
async def test_a_request_that_is_late_tells_how_slow_the_way_is(monkeypatch: pytest.MonkeyPatch):
    """Where nothing else has told it."""
    monkeypatch.setattr(pings, "FIRST", ())
    async with site(*wide_boxes()) as (a, _):
        await asyncio.sleep(3)
        for _ in range(100):
            a.ask(300, model="wide")
            await asyncio.sleep(1)
        assert a.endings == {"expired": 1, "infeasible": 99}


@virtually
async def test_small_requests_do_not_keep_a_way_that_was_slow_from_being_measured_again():
    near, far = wide_boxes()
    far.device.models["m"] = "d"
    async with site(near, far) as (a, b):
        await asyncio.sleep(3)
        load = asyncio.get_running_loop().create_task(a.load(20, 60, 200))
        a.cable.mbps = b.cable.mbps = 5
        for _ in range(15):
            a.ask(1_300, model="wide")
            await asyncio.sleep(1)
        await until(lambda: link_to_b(a)._meter.describe()["bandwidth_mbps"] < 6)
        a.cable.mbps = b.cable.mbps = 20
        for _ in range(30):
            a.ask(1_300, model="wide")
            await asyncio.sleep(1)
        assert link_to_b(a)._meter.describe()["bandwidth_mbps"] == pytest.approx(20, rel=0.1)
        await load


@pytest.mark.parametrize(("large", "refused"), [(1, 0), (2, 0), (3, 10)])
@virtually
async def test_a_few_large_answers_do_not_keep_other_requests_away(large: int, refused: int):
    """A large one takes 480 ms, and is late; what it tells is not for ever."""
    near, far = Box("a", models={}), Box("b", models={"free": "d"})
    near.cable.mbps = far.cable.mbps = 20
    async with site(near, far) as (a, b):
        await asyncio.sleep(3)
        for number in range(40):
            b.device.gives = WIDE if 5 <= number < 5 + large else 4
            a.ask(400, model="free")
            await asyncio.sleep(1)
        assert a.endings["expired"] == large
        assert refused / 2 <= a.endings["infeasible"] <= refused
        assert a.endings["completed"] == 40 - large - a.endings["infeasible"]


@virtually
async def test_what_loses_its_time_before_it_is_sent_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    async with site(*wide_boxes()) as (a, _):
        await asyncio.sleep(3)
        monkeypatch.setattr(WayMeter, "both_ways_ns", lambda *_: 2_000 * MS)
        a.ask(1_500, model="wide")
        await asyncio.sleep(2)
        assert a.endings.total() == 1
        assert (a.endings["completed"], forwarded(a)) == (0, 0)


@virtually
async def test_a_box_that_has_nothing_left_to_offer_is_not_sent_anything_just_after_it_rested():
    async with site(Box("a", models={}), Box("b")) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        a.ask(500)
        await until(lambda: a.endings["completed"] == 1)
        known = link_to_b(a)._known
        await until(lambda: known.learned and not known._used)  # the next report counts for more
        b.driver.on_lost("cpu:0", "unplugged")
        await until(lambda: not known.models)
        assert not a.driver.core.targets["b"].up
        a.ask(500)
        await asyncio.sleep(1)
        assert forwarded(a) == 1


@virtually
async def test_a_box_that_became_slower_than_short_deadlines_allow_is_there_for_longer_ones():
    b = Box("b")
    b.device.base_ms, b.device.item_ms = 3.0, 1.0
    async with site(Box("a", models={}), b) as (a, b):
        await asyncio.sleep(1)
        for _ in range(10):
            a.ask(30)
            await asyncio.sleep(0.05)
        assert a.endings["completed"] == 10
        b.device.base_ms = 200.0
        b.driver.on_changed(b.device.spec())
        await asyncio.sleep(1)
        a.ask(5_000)
        await until(lambda: a.endings["completed"] == 11)


@virtually
async def test_a_model_that_another_box_has_unloaded_does_not_keep_others_from_it():
    async with site(Box("a", models={}), Box("b", models={"m": "d", "n": "d"})) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        await asyncio.sleep(1)
        b.door.admission.unload("m")
        await asyncio.sleep(1)
        for _ in range(20):
            a.ask(150, model="m")
            await asyncio.sleep(0.02)
            a.ask(150, model="n")
            await asyncio.sleep(0.08)
        await asyncio.sleep(1)
        assert a.endings == {"completed": 20, "unavailable": 20}
        assert forwarded(a) == 20
        b.door.admission.load("m")
        await asyncio.sleep(1)
        a.ask(150, model="m")
        await until(lambda: a.endings["completed"] == 21)


@asynccontextmanager
async def twelve_under_way() -> AsyncIterator[tuple[Box, Box, int]]:
    """Two boxes, twelve requests for `n` of the first at the second, and how many run there."""
    b = Box("b", models={"m": "d", "n": "d"})
    b.device.base_ms = 1_500.0
    async with site(Box("a", models={}), b) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        await asyncio.sleep(1)
        for _ in range(12):
            a.ask(20_000, model="n")
        await until(lambda: len(b.driver.core.ledger.records) == 12)
        running = sum(len(run.requests) for run in b.driver.core.runs.values())
        assert running < 12
        yield a, b, running


@virtually
async def test_what_is_under_way_at_another_box_goes_on_when_that_unloads_another_model():
    async with twelve_under_way() as (a, b, _):
        b.door.admission.unload("m")
        await until(lambda: "m" not in a.driver.core.targets["b"].offers)
        await until(lambda: a.endings["completed"] == 12)
        assert b.device.ran == 12
        assert forwarded(a) == 12


@virtually
async def test_what_waits_for_a_model_that_another_box_unloads_ends_at_once():
    async with twelve_under_way() as (a, b, _):
        target = a.driver.core.targets["b"]
        while target.has_slot() and target.is_open(a.driver.core.now_ns):
            a.ask(20_000)
            await asyncio.sleep(0)
        a.ask(20_000)
        assert a.driver.core.ledger.queued()
        b.door.admission.unload("m")
        await until(lambda: "m" not in a.driver.core.targets["b"].offers)
        assert a.driver.core.ledger.queued() == []
        assert a.endings["unavailable"] > 0


@virtually
async def test_what_is_taken_back_from_another_box_does_not_wait_there_as_well():
    async with twelve_under_way() as (a, b, running):
        b.door.admission.unload("m")
        b.door.admission.unload("n")
        await until(lambda: not b.driver.core.ledger.records)
        await until(lambda: not b.driver.core.runs)
        assert b.device.ran == running
        b.door.admission.load("n")
        await until(lambda: a.endings["completed"] == 12)


@virtually
async def test_a_box_that_gives_requests_up_at_once_is_left_alone_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
):
    async with site(Box("a", models={}), Box("b")) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        await asyncio.sleep(1)
        admit = b.door.admission.submission
        refused: list[Any] = []

        def expired(*args: Any) -> Any:
            if len(refused) == 50:
                return admit(*args)
            refused.append(args)
            raise DeadlineExpired("a clock of its own", {})

        monkeypatch.setattr(b.door.admission, "submission", expired)
        a.ask(1_000)
        await until(lambda: a.endings)
        assert len(refused) < 20


@virtually
async def test_what_is_too_large_for_another_box_is_not_sent_there():
    async with site(Box("a"), Box("b", models={"m": "d", "n": "d"}, body_bytes=15)) as (a, b):
        await a.load(1.5 * CAPACITY, 1, 300)
        assert set(a.places) == {"cpu:0"}
        assert (forwarded(a), b.device.ran) == (0, 0)
        (told,) = (target for target in a.driver.status()["targets"] if target["id"] == "b")
        assert (told["too_large"], told["refused"]) == ([{"model": "m", "shapes": ((4,),)}], 0)
        a.ask(300, model="n")
        await until(lambda: a.endings["unavailable"] == 1)
        await b.crash()
        b.body_bytes = 16
        await b.start_again()
        await until(lambda: whole(b, (a, b)) and a.driver.core.targets["b"].up)
        await a.load(1.5 * CAPACITY, 1, 300)
        assert a.places["b/cpu:0"] > 0, "the next life of a box is asked anew"


@virtually
async def test_what_is_described_at_more_length_than_another_box_reads_is_not_sent_there(
    monkeypatch: pytest.MonkeyPatch,
):
    """It would end the connection, and with it what others have there."""
    far = Box("b")
    far.door.rules = replace(far.door.rules, frames=FrameLimits(1_500, 1_000))
    async with site(Box("a", models={}), far) as (a, _):
        await until(lambda: "b" in a.driver.core.targets)
        lost: list[Any] = []
        monkeypatch.setattr(a.driver, "on_lost", lambda *said, **_: lost.append(said))
        kind, answers = RequestClass("m", None, ((5,),)), list[Answer]()
        specs, body = [["x" * 2_000, "float32", [5]]], memoryview(bytes(20))
        due_ns = a.driver.clock_ns() + 1_000 * MS
        a.ask(300)
        a.intake.submit([Submission(kind, specs, body, due_ns, 3, 1.0, False, answers.append)])
        a.ask(300)
        await until(lambda: answers and a.endings.total() == 2)
        assert a.endings == {"completed": 2}
        assert answers[0].outcome == "unavailable"
        assert "more than b takes" in answers[0].reason
        assert lost == []


@pytest.mark.parametrize("it_breaks", [False, True])
@virtually
async def test_nothing_small_waits_behind_what_is_large(it_breaks: bool):
    near = Box("a", models={}, body_bytes=2_000_000)
    far = Box("b", models={"m": "d", "wide": "d"}, body_bytes=2_000_000)
    async with site(near, far) as (a, b):
        await until(lambda: "b" in a.driver.core.targets)
        a.ask(20_000, model="wide")
        await until(lambda: a.endings["completed"] == 1)
        await until(lambda: link_to_b(a)._large._connection is not None)
        b.cable.narrow = True
        a.ask(20_000, model="wide")
        await until(lambda: b.cable.stuck)
        for _ in range(3):
            a.ask(500)
        await until(lambda: a.endings["completed"] == 4)
        assert len(a.driver.core.ledger.records) == 1
        b.cable.narrow = False
        if it_breaks:
            b.cable.break_stuck()
        else:
            b.cable.widen()
        await until(lambda: a.endings["completed"] == 5)
        assert a.driver.core.targets["b"].up
        assert forwarded(a) == (6 if it_breaks else 5)


@pytest.mark.parametrize("wrong", [{"batch": "one"}, {"notes": 3}, {"timing": [1]}])
@virtually
async def test_a_large_answer_that_is_malformed_does_not_lose_its_request(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """It ends the second connection alone, and the request is sent again."""
    near = Box("a", models={}, body_bytes=2_000_000)
    far = Box("b", models={"m": "d", "wide": "d"}, body_bytes=2_000_000)
    async with site(near, far) as (a, _):
        await until(lambda: "b" in a.driver.core.targets)
        a.ask(20_000, model="wide")
        await until(lambda: a.endings["completed"] == 1)
        await until(lambda: link_to_b(a)._large._connection is not None)
        say, left = Answer.header, [wrong]

        def header(answer: Answer) -> dict[str, Any]:
            is_wide = isinstance(answer.offer, Offer) and answer.offer.model == "wide"
            return {**say(answer), **(left.pop() if is_wide and left else {})}

        monkeypatch.setattr(Answer, "header", header)
        busy = asyncio.ensure_future(a.load(CAPACITY / 4, 3, 300))
        await asyncio.sleep(1)
        a.ask(1_000, model="wide")
        await busy
        assert not left
        assert a.endings == {"completed": a.asked}
        assert a.driver.core.targets["b"].up


@virtually
async def test_a_large_message_on_a_slow_way_holds_up_no_reports(
    monkeypatch: pytest.MonkeyPatch,
):
    """It takes a second there and a second back, the first one too."""
    near = Box("a", models={}, body_bytes=1_000_000)
    far = Box("b", models={"m": "d", "broad": "d"}, body_bytes=1_000_000)
    near.cable.mbps = far.cable.mbps = 5
    async with site(near, far) as (a, _):
        await asyncio.sleep(3)
        lost: list[Any] = []
        monkeypatch.setattr(a.driver, "on_lost", lambda *said, **_: lost.append(said))
        for _ in range(8):
            a.ask(5_000, model="broad")
            for _ in range(30):
                await asyncio.sleep(0.1)
                a.ask(3_000)
        await until(lambda: a.endings.total() == a.asked)
        assert lost == []
        assert a.endings == {"completed": 8 * 31}


@virtually
async def test_a_box_that_dies_under_load_costs_no_request_its_end_and_comes_back():
    a, b, _ = boxes = [Box(name) for name in "abc"]
    async with site(*boxes):
        load = asyncio.ensure_future(a.load(2 * CAPACITY, 6, 300))
        await asyncio.sleep(2)
        await b.crash()
        before = Counter(a.endings)
        await asyncio.sleep(1)
        assert (a.endings - before)["completed"] > 1.5 * CAPACITY
        await b.start_again()
        await until(lambda: all(whole(box, boxes) for box in boxes), 5)
        ran = b.device.ran
        await load
        assert b.device.ran > ran


@virtually
async def test_a_cut_cable_leaves_two_sides_that_go_on_and_are_whole_again_soon():
    a, b = boxes = [Box(name) for name in "ab"]
    async with site(*boxes):
        load = asyncio.ensure_future(a.load(1.5 * CAPACITY, 45, 300))
        await asyncio.sleep(2)
        for box in boxes:
            box.cable.pull()
        await until(lambda: all(box.neighbours.describe()["alone"] for box in boxes), 3)
        before = Counter(a.endings)
        await asyncio.sleep(27)
        assert (a.endings - before)["completed"] > 0.9 * 27 * CAPACITY, "its own device goes on"
        for box in boxes:
            box.cable.mend()
        await until(lambda: all(whole(box, boxes) for box in boxes), 15)
        ran = b.device.ran
        await load
        assert b.device.ran > ran


@virtually
async def test_a_box_that_leaves_says_so_and_takes_nothing_more():
    async with site(Box("a")) as (a,):
        b = Box("b")
        b.join_at([a])
        await b.start()
        await until(lambda: a.states() == {"b": "up"})
        await b.stop()
        await until(lambda: a.states() == {"b": "left"}, 1)
        a.ask(300)
        await until(lambda: a.places["cpu:0"] == 1)


@virtually
async def test_a_box_that_hears_of_another_while_it_closes_closes_all_the_same():
    async with site(Box("a"), Box("b")) as (a, b):
        await until(lambda: whole(a, (a, b)))
        closing = asyncio.ensure_future(a.driver.close())
        await asyncio.sleep(0)
        a.neighbours.heard("b", [["c", "tcp://127.0.0.1:9", 1, 0, False]])
        await closing


@virtually
async def test_nothing_is_kept_of_a_box_that_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "FORGET_NS", 5_000_000_000)
    async with site(Box("a")) as (a,):
        b = Box("b")
        b.device.energy_uj = {1: 5_000}
        b.join_at([a])
        await b.start()
        await until(lambda: "b" in a.driver.core.targets)
        await b.stop()
        await until(lambda: a.states() == {})
        assert list(a.driver.core.targets) == ["cpu:0"]
        assert a.driver._energy.offers == {}
        a.ask(300)
        await until(lambda: a.places["cpu:0"] == 1)


@pytest.mark.parametrize(
    ("stranger", "why"),
    [
        ({"name": "b", "token": TOKEN + "x"}, "it refuses this box's token"),
        ({"name": "b", "site": "line-4"}, "belongs to the site 'line-3', not 'line-4'"),
        ({"name": "a"}, "two boxes are called 'a'; give one of them another name"),
    ],
    ids=["token", "site", "name"],
)
@virtually
async def test_a_stranger_is_not_let_in_and_says_why_once(
    stranger: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
):
    async with site(Box("a")) as (a,):
        b = Box(**stranger)
        b.join_at([a])
        await b.start()
        await asyncio.sleep(3)
        assert a.states() == {}
        assert b.neighbours.describe()["alone"]
        (told,) = b.neighbours.describe()["not_joined"]
        assert why in told["reason"]
        assert capsys.readouterr().out.count("another box can't be joined") == 1
        await b.stop()


@virtually
async def test_a_box_that_no_other_reaches_is_told_so(capsys: pytest.CaptureFixture[str]):
    async with site(Box("a")) as (a,):
        b = Box("b")
        b.join_at([a])
        b.advertise = Address("tcp", host="127.0.0.1", port=1)
        await b.start()
        await until(lambda: b.states() == {"a": "up"})
        assert b.neighbours.describe()["not_reached_by"] == []
        await asyncio.sleep(12)
        assert b.neighbours.describe()["not_reached_by"] == ["a"]
        assert b.neighbours.describe()["address"] == "tcp://127.0.0.1:1"
        assert a.neighbours.describe()["not_reached_by"] == []
        await asyncio.sleep(5)
        assert capsys.readouterr().out.count("another box does not reach this one") == 1
        await b.stop()


@virtually
async def test_each_box_knows_which_version_the_others_run(monkeypatch: pytest.MonkeyPatch):
    async with site(Box("a"), Box("b")) as (a, b):
        assert (a.versions(), b.versions()) == ({"b": "1.2.3"}, {"a": "1.2.3"})
        await b.crash()
        b.version = "2.0.0rc1"
        await b.start()
        await until(lambda: a.versions() == {"b": "2.0.0rc1"})
        await b.crash()
        says_all = Neighbours._who_is_here

        def says_no_version(self: Neighbours, host: str | None) -> dict[str, Any]:
            said = says_all(self, host)
            del said["version"]
            return said

        monkeypatch.setattr(Neighbours, "_who_is_here", says_no_version)  # as older ones
        await b.start()
        await until(lambda: a.versions() == {"b": None} and a.states() == {"b": "up"})
        await until(lambda: b.states() == {"a": "up"})


@virtually
async def test_a_box_that_refuses_this_one_is_said_to_though_it_joins_itself(
    capsys: pytest.CaptureFixture[str],
):
    async with site(Box("a")) as (a,):
        b = Box("b", token=TOKEN + "x")
        await b.start()
        a.join_at([b])
        a.neighbours._tasks.append(asyncio.create_task(a.neighbours._seek(a.join[0])))
        await until(lambda: "b" in a.states() and "a" in b.states())
        await asyncio.sleep(3)
        (way,) = [t for t in b.driver.status()["targets"] if t["id"] == "a"]
        assert "box a: it refuses this box's token" in way["progress"]["text"]
        assert capsys.readouterr().out.count("another box can't be used") == 1
        await b.stop()


@virtually
async def test_a_box_that_has_got_another_name_is_said_to_once(capsys: pytest.CaptureFixture[str]):
    async with site(Box("a")) as (a,):
        b, renamed = Box("b"), Box("c")
        for box in (b, renamed):
            box.join_at([a])
        await b.start()
        await until(lambda: a.states() == {"b": "up"})
        await b.crash()
        await renamed.start()
        known = a.neighbours._members.get("b")
        assert known is not None
        known.who = replace(known.who, address=f"tcp://127.0.0.1:{renamed.outside}")
        capsys.readouterr()
        await asyncio.sleep(10)
        (way,) = [target for target in a.driver.status()["targets"] if target["id"] == "b"]
        why = "the box at the address of 'b' is 'c'"
        assert why in way["progress"]["text"]
        logged = capsys.readouterr().out
        # By that box as well, which has heard of its former self.
        assert logged.count("another box can't be used") == logged.count(why) == 2
        await renamed.stop()


@virtually
async def test_boxes_whose_tokens_are_replaced_one_after_the_other_are_together_again():
    async with site(Box("a"), Box("b")) as (a, b):
        fresh = TOKEN + "x"
        access = Access([OWNER.model_copy(update={"tokens": (hash_of(fresh),)})])
        b.door.take_access(access)
        b.neighbours.token = fresh
        await until(lambda: a.states() == {"b": "gone"}, 60)
        a.door.take_access(access)
        a.neighbours.token = fresh
        await until(lambda: (a.states(), b.states()) == ({"b": "up"}, {"a": "up"}), 60)
        a.ask(400)
        await until(lambda: a.endings == {"completed": 1})


@virtually
async def test_where_an_authority_is_removed_boxes_check_each_other_again():
    """On both ways: the box that is called has shown a certificate too."""
    async with site(Box("a"), Box("b")) as (a, b):
        before = {box: set(box.door._connections) for box in (a, b)}
        a.door.tls = cast(Any, SimpleNamespace(distrusts=lambda connection: True))
        a.door.take_access(ACCESS)
        a.door.tls = None
        await until(lambda: not any(before[box] & box.door._connections for box in (a, b)))
        await until(lambda: (a.states(), b.states()) == ({"b": "up"}, {"a": "up"}))
        await until(lambda: a.door._connections and b.door._connections)


@virtually
async def test_a_box_with_the_name_of_a_target_is_reported_once(capsys: pytest.CaptureFixture[str]):
    async with site(Box("a"), Box("c")) as (a, _):
        a.driver.add_target("eu", MadeUpDevice("eu", {}, a.driver, a.loop))
        b = Box("eu")
        b.join_at([a])
        await b.start()
        await until(lambda: a.states().keys() == {"c", "eu"})
        await asyncio.sleep(10)
        told = capsys.readouterr().out.count("name of a target")
        assert told == 1
        await b.stop()


@virtually
async def test_a_box_may_be_told_to_join_itself():
    a = Box("a")
    a.joins_itself = True
    async with site(a):
        await asyncio.sleep(3)
        assert a.states() == {}

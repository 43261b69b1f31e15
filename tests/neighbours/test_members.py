"""What a box believes of others, and what it takes from them, without any socket."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.events import TargetUp
from scheduler.core.latency import STALE_NS
from scheduler.core.scheduler import Scheduler
from scheduler.daemon.neighbours.members import (
    FORGET_NS,
    GONE_NS,
    MOST_MEMBERS,
    SUSPECT_NS,
    Identity,
    Members,
)
from scheduler.daemon.neighbours.report import (
    name_from,
    report_header,
    room_for,
    rows_from,
    rows_of,
)
from scheduler.errors import Forbidden, ProtocolError
from scheduler.policy_loading import load_policy
from tests.core.world import MS, offer, target

B = Identity("b", "tcp://10.0.0.2:1", 7)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


def state(members: Members, now_ns: int) -> str:
    (member,) = members
    return member.state(now_ns)


def who(members: Members) -> Identity:
    (member,) = members
    return member.who


def test_a_box_is_up_suspected_gone_and_forgotten_as_silence_lasts():
    members = Members("a")
    members.introduced(B, 0)
    assert state(members, SUSPECT_NS - 1) == "up"
    assert state(members, SUSPECT_NS) == "suspected"
    assert state(members, GONE_NS) == "gone"
    members.heard("b", GONE_NS)
    assert state(members, GONE_NS) == "up"
    members.forget(GONE_NS + FORGET_NS + 1)
    assert len(members) == 0


def test_hearsay_tells_where_a_box_is_but_not_whether_it_can_be_reached():
    a, c = Members("a"), Members("c")
    c.introduced(B, 0)
    a.told(c.gossip(5 * MS), 5 * MS)
    assert who(a) == B
    assert state(a, 5 * MS) == "gone"


def test_what_was_heard_later_is_believed():
    a = Members("a")
    a.introduced(B, 0)
    moved = ["b", "tcp://10.0.0.9:1", 8]
    a.told([[*moved, 50, False]], 40 * MS)
    assert who(a) == B, "older than what was heard directly"
    a.told([[*moved, 10, False]], 40 * MS)
    assert who(a).address == "tcp://10.0.0.9:1"
    a.told([[*moved, 0, True]], 41 * MS)
    assert state(a, 41 * MS) == "left"
    a.introduced(B, 42 * MS)
    assert state(a, 42 * MS) == "up"


def test_a_name_belongs_to_one_box_as_long_as_that_is_there():
    members = Members("a")
    members.introduced(B, 0)
    other = Identity("b", "tcp://10.0.0.3:1", 8)
    with pytest.raises(Forbidden, match="another box is called 'b'"):
        members.introduced(other, 1)
    with pytest.raises(Forbidden, match="give one of them another name"):
        members.introduced(Identity("a", "tcp://10.0.0.3:1", 8), 1)
    members.introduced(Identity("b", B.address, 9), 2)  # it was started again
    members.introduced(other, 2 + SUSPECT_NS)
    assert who(members) == other


@pytest.mark.parametrize("version", [None, 1, "", "1.0\x1b[2J", "1" * 65, ["1.0"]])
def test_what_can_be_no_version_is_none(version: Any):
    members = Members("a")
    members.introduced(B, 0, "1.0")
    assert members.describe(0)[0]["version"] == "1.0"
    members.introduced(B, 0, version)
    assert members.describe(0)[0]["version"] is None


def test_a_site_has_so_many_boxes_and_no_more():
    members = Members("a")
    members.told([[f"b{n}", "tcp://h:1", 1, 0, False] for n in range(2 * MOST_MEMBERS)], 1)
    assert len(members) == MOST_MEMBERS
    with pytest.raises(Forbidden):
        members.introduced(B, 1)


@given(st.lists(ANYTHING | st.lists(ANYTHING, min_size=5, max_size=5), max_size=5))
def test_no_gossip_does_harm(entries: list[Any]):
    members = Members("a")
    with contextlib.suppress(TypeError, ValueError):
        members.told(entries, 10**12)
    for member in members:
        assert type(member.who.box) is str
        assert member.told_ns <= 10**12


def test_a_report_arrives_as_it_was_meant():
    core = Scheduler(load_policy("goodput"))
    lengths = replace(offer("n"), item_shapes=((7, 80), ()))
    core.handle(TargetUp(target("cpu:0", offer(base_ms=4, item_ms=1), lengths)), 0)
    rows = rows_of(core, 0)
    waits = {(row.model, row.variant): row.wait_ns for row in rows}
    read = rows_from(report_header(rows, waits, lambda count: count))
    assert read == rows
    assert [row.model for row in read] == ["m", "n"]
    assert [row.item_shapes for row in read] == [(), ((7, 80), ())]
    assert read[0].steps == ((10 * MS, 2), (12 * MS, 4), (16 * MS, 8), (24 * MS, 16))
    assert [room_for(read[0].steps, ms * MS) for ms in (1, 10, 14, 20, 99)] == [0, 2, 6, 12, 16]


def test_a_box_that_was_slow_for_a_moment_does_not_say_so_for_ever():
    core = Scheduler(load_policy("goodput"))
    core.handle(TargetUp(target("cpu:0", offer(base_ms=4, item_ms=1))), 0)
    healthy = rows_of(core, 0)
    (device,) = core.targets.values()
    curve = device.curve(device.offers["m"][0])
    for batch in range(40):
        curve.observe(1, 150 * MS, batch * 150 * MS)
    slow_ns = 40 * 150 * MS
    assert rows_of(core, slow_ns)[0].service_ns[4] > 100 * MS
    # Nobody sends what it could not do in time, so nothing comes that would tell it better.
    assert rows_of(core, slow_ns + STALE_NS)[0].service_ns == healthy[0].service_ns


def test_a_report_leaves_nothing_to_learn_from():
    """It is in no journal, and a replay must learn the same."""
    core = Scheduler(load_policy("edf"))
    core.handle(TargetUp(target("cpu:0", offer())), 0)
    (device,) = core.targets.values()
    assert rows_of(core, 0)
    assert device.calibration() == []


@pytest.mark.parametrize("name", [5, None, "x\r\nX-Header: 1", "\x1b[2J", "x" * 201])
def test_a_name_of_another_box_can_stand_in_a_header_and_on_a_terminal(name: Any):
    assert name_from("cpu:0") == "cpu:0"
    with pytest.raises(ValueError, match="is not a valid name"):
        name_from(name)
    for place in range(3):
        row: list[Any] = ["m", "v", "r", 0, None, 0, [[1, 1]], [1]]
        assert len(rows_from({"rows": [row]})) == 1
        row[place] = name
        with pytest.raises(ProtocolError):
            rows_from({"rows": [row]})


@given(ANYTHING | st.lists(st.lists(ANYTHING, min_size=8, max_size=10), max_size=3))
def test_no_report_does_harm(rows: Any):
    try:
        read = rows_from({"rows": rows})
    except ProtocolError:
        return
    for row in read:
        assert row.accuracy is None or math.isfinite(row.accuracy)
        assert row.wait_ns >= 0
        assert min(row.service_ns) > 0


@pytest.mark.parametrize(
    ("box", "address"), [("cpu:0", "tcp://h:1"), ("", "tcp://h:1"), ("b", "unix:///run/x.sock")]
)
def test_no_box_is_taken_for_a_device_or_a_socket_of_this_one(box, address):
    members = Members("a")
    with pytest.raises(ValueError, match=r"not a valid name|that machine"):
        members.told([[box, address, 1, 0, False]], 1)
    assert len(members) == 0


def test_a_life_that_other_boxes_would_not_take_is_not_told_on():
    members = Members("a")
    with pytest.raises(ValueError, match="not an incarnation number"):
        members.introduced(Identity("b", "tcp://h:1", True), 1)
    assert members.gossip(1) == []

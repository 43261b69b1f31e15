"""The bounds where inputs share a link: above everything that can be done, and close to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import make_policy
from replay.bound import Conditions, SharedLink, exact_bound, fluid_bound, whole_bound
from replay.fleet.file import parse_fleet
from replay.fleet.world import Link
from replay.links import Capacity, LinkTrace
from replay.simulator import Arrival, Simulator
from scheduler.core.forms import Form
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec
from scheduler.yaml_loader import load

MS = 1_000_000
KB = 1_000
A = RequestClass("a")
CLOSE = 1e-6
BOUNDS: list[Any] = [fluid_bound, whole_bound]


def target(name: str, one_ms: int, two_ms: int | None = None) -> TargetSpec:
    times_ns = {1: (one_ms * MS,)}
    if two_ms is not None:
        times_ns[2] = (two_ms * MS,)
    return TargetSpec(name, (Offer("a", "v", "runtime", times_ns),))


def behind(name: str, ms_per_kb: int, spare_ns: int = 0) -> Conditions:
    """A target behind a link that needs so long for each kilobyte."""
    byte_ns = ms_per_kb * MS / KB
    return Conditions(byte_ns=byte_ns, link=SharedLink(name, byte_ns, spare_ns))


def some_schedule(
    arrivals: list[Arrival], fleet: list[TargetSpec], links: dict[str, Link]
) -> float:
    """The best schedule in which batches are sent in the order in which they run.

    Args:
        arrivals: The requests.
        fleet: The targets.
        links: By target id; targets with the identical link share it.
    """
    ways = list({id(link): link for link in links.values()}.values())
    behind = [next((w for w, way in enumerate(ways) if way is links.get(s.id)), -1) for s in fleet]

    @cache
    def best(sent_ns: tuple[int, ...], free_ns: tuple[int, ...], left: frozenset[int]) -> float:
        value = 0.0
        for riders in (*combinations(left, 1), *combinations(left, 2)):
            batch = [arrivals[i] for i in riders]
            for place, (spec, way) in enumerate(zip(fleet, behind, strict=True)):
                if len(batch) not in spec.offers[0].latency_ns:
                    continue
                sent, landed_ns = sent_ns, max(each.at_ns for each in batch)
                if way >= 0:
                    begun_ns = max(sent[way], landed_ns)
                    size = sum(each.size_bytes for each in batch)
                    landed_ns = begun_ns + ways[way].carry_ns(begun_ns, size)
                    sent = (*sent[:way], landed_ns, *sent[way + 1 :])
                end_ns = max(landed_ns, free_ns[place])
                end_ns += spec.offers[0].latency_ns[len(batch)][0]
                in_time = [e.weight for e in batch if end_ns <= e.at_ns + e.budget_ns]
                if any(in_time):
                    free = (*free_ns[:place], end_ns, *free_ns[place + 1 :])
                    value = max(value, sum(in_time) + best(sent, free, left.difference(riders)))
        return value

    return best((0,) * len(ways), (0,) * len(fleet), frozenset(range(len(arrivals))))


requests = st.builds(
    lambda at, budget, weight, size: Arrival(
        at * MS, A, budget * MS, weight=float(weight), size_bytes=size * KB
    ),
    st.integers(0, 9),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 3),
)


pieces = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4).filter(
    lambda found: any(carried for _, carried in found)
)
"""The length of each piece of a recording, and what it carries."""


def recorded(shape: list[tuple[int, int]], ns: int, size: int) -> Capacity:
    ends = np.cumsum([width for width, _ in shape]) * ns
    return Capacity([0, *ends[:-1].tolist()], [each * size for _, each in shape], int(ends[-1]))


links = st.integers(0, 4).map(lambda ms_per_kb: Link(byte_ns=ms_per_kb * MS / KB)) | pieces.map(
    lambda shape: Link(trace=LinkTrace(None, recorded(shape, MS, KB)))
)


@given(
    arrivals=st.lists(requests, max_size=5).map(lambda found: sorted(found, key=lambda a: a.at_ns)),
    services_ms=st.lists(
        st.tuples(st.integers(1, 4), st.none() | st.integers(0, 3)), min_size=1, max_size=3
    ),
    ways=st.tuples(links, links),
    behind=st.lists(st.sampled_from((None, 0, 0, 1)), min_size=3, max_size=3),
    block=st.sampled_from((1, 2, 500)),
)
def test_the_bounds_are_not_below_what_can_cross_and_run(
    arrivals, services_ms, ways, behind, block
):
    fleet = [
        target(f"cpu:{i}", one, None if more is None else one + more)
        for i, (one, more) in enumerate(services_ms)
    ]
    taken = {spec.id: way for spec, way in zip(fleet, behind, strict=False) if way is not None}
    done = some_schedule(arrivals, fleet, {name: ways[way] for name, way in taken.items()})
    far = {
        name: Conditions(byte_ns=ways[way].byte_ns, link=ways[way].shared(str(way)))
        for name, way in taken.items()
    }
    fluid = fluid_bound(arrivals, fleet, conditions=far, weighted=True, block=block)
    assert fluid.value >= done - CLOSE
    assert whole_bound(arrivals, fleet, conditions=far, weighted=True).value >= done - CLOSE
    exact = exact_bound(arrivals, fleet, conditions=far, weighted=True)
    assert exact.value >= done - CLOSE
    assert not far or not exact.exact or exact.value == 0


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("ms_per_kb", "least", "most"), [(2, 50, 56), (1, 100, 106), (0, 200, 200)]
)
def test_a_link_carries_one_input_after_the_other(bound, ms_per_kb, least, most):
    fleet = [target("gpu:0", 1), target("gpu:1", 1), target("gpu:2", 1)]
    arrivals = [Arrival(i * MS // 2, A, 5 * MS, size_bytes=KB) for i in range(200)]
    far = {spec.id: behind("wire", ms_per_kb) for spec in fleet}
    assert least - CLOSE <= bound(arrivals, fleet, conditions=far).value <= most


@pytest.mark.parametrize("bound", BOUNDS)
def test_targets_behind_different_links_do_not_share_one(bound):
    fleet = [target("a", 1), target("b", 1)]
    arrivals = [Arrival(i * MS // 2, A, 8 * MS, size_bytes=KB) for i in range(200)]
    one = {"a": behind("wire", 2), "b": behind("wire", 2)}
    two = {"a": behind("wire", 2), "b": behind("radio", 2)}
    assert bound(arrivals, fleet, conditions=one).value <= 57
    assert 100 - CLOSE <= bound(arrivals, fleet, conditions=two).value <= 114


@pytest.mark.parametrize("bound", BOUNDS)
def test_an_input_that_takes_longer_than_the_budget_can_not_be_served_there(bound):
    arrivals = [Arrival(0, A, 10 * MS, size_bytes=size * KB) for size in (1, 4, 5, 9)]
    far = {"a": Conditions(byte_ns=2 * MS / KB)}
    assert bound(arrivals, [target("a", 2)], conditions=far).value == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("block", [1, 500])
def test_what_has_no_time_or_no_worth_is_not_served_over_a_link(block):
    far = {"a": behind("wire", 2)}
    budgets, sizes = (0, -1, 9, 0), (0, 1, 1, 1)
    arrivals = [
        Arrival(0, A, budget * MS, size_bytes=size * KB)
        for budget, size in zip(budgets, sizes, strict=True)
    ]
    found = fluid_bound(arrivals, [target("a", 1)], conditions=far, block=block)
    assert found.value == pytest.approx(1)
    assert whole_bound(arrivals, [target("a", 1)], conditions=far).value == pytest.approx(1)
    idle = [replace(each, weight=0.0) for each in arrivals]
    for bound in BOUNDS:
        assert bound(idle, [target("a", 1)], conditions=far, weighted=True).value == 0


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_a_link_carries_beyond_its_mean_is_counted(bound):
    arrivals = [Arrival(i * MS // 2, A, 8 * MS, size_bytes=KB) for i in range(200)]
    even, uneven = (
        bound(arrivals, [target("a", 1)], conditions={"a": behind("wire", 4, spare_ns)}).value
        for spare_ns in (0, 20 * MS)
    )
    assert even <= 33
    assert even + 5 - CLOSE <= uneven


@pytest.mark.parametrize("capacity", [False, True])
def test_no_policy_beats_the_bounds_of_a_fleet_with_links(capacity):
    text = """
models: [{name: a, base_ms: 2, per_item_ms: 1, jitter: 0, batches: [1, 2, 4]}]
boxes:
  - devices: [{id: near}]
  - {name: far, link: {rtt_ms: 2, mbps: 40}, devices: [{id: x}, {id: y}]}
"""
    fleet = parse_fleet(load(text), None, "fleet.yaml", Path())
    if capacity:  # in the mean 40 Mbps as well: 10 KB at the start of each 2 ms
        link = fleet.devices[1].link
        assert link is not None
        trace = LinkTrace(None, Capacity((0, MS // 10), (10 * KB, 0), 2 * MS))
        link = replace(link, byte_ns=0.0, trace=trace)
        far = [replace(device, link=link) for device in fleet.devices[1:]]
        fleet = replace(fleet, devices=(fleet.devices[0], *far))
    arrivals = [Arrival(i * MS // 2, A, 20 * MS, size_bytes=10 * KB) for i in range(400)]
    conditions, times = fleet.conditions(1), fleet.true_times(1)
    values = [
        bound(arrivals, fleet.targets(), conditions=conditions, times=times).value
        for bound in BOUNDS
    ]
    for policy in ("goodput", "edf", "ect"):
        simulator = Simulator(
            make_policy(policy), fleet.targets(), fleet.service_time(1), world=fleet.world(1)
        )
        done = sum(ending.in_time for ending in simulator.run(arrivals))
        assert done <= min(values), policy
    free = {name: replace(each, link=None) for name, each in conditions.items()}
    assert max(values) < fluid_bound(arrivals, fleet.targets(), conditions=free, times=times).value


def test_what_is_in_time_only_with_smaller_inputs_is_within_the_bounds():
    """As in the journal of a box with a cloud, to which a model's owner allows smaller inputs."""
    text = """
models: [{name: a, base_ms: 1, jitter: 0, batches: [1]}]
boxes: [{name: far, link: {rtt_ms: 2, mbps: 40}, devices: [{id: x}, {id: y}]}]
"""
    fleet = parse_fleet(load(text), None, "fleet.yaml", Path())
    x, y = fleet.devices
    forms = Form("a", "half", 0.5, 1.0), Form("b", "tenth", 0.1, 1.0)
    x = replace(x, spec=replace(x.spec, forms=forms))
    shrinking = replace(fleet, devices=(x, y))
    arrivals = [Arrival(i * 3 * MS, A, 4_500_000, size_bytes=10 * KB + 1) for i in range(50)]
    simulator = Simulator(
        make_policy("edf"), shrinking.targets(), shrinking.service_time(1), world=shrinking.world(1)
    )
    assert all(ending.in_time for ending in simulator.run(arrivals))
    for bound in BOUNDS:
        assert bound(arrivals, fleet.targets(), conditions=fleet.conditions()).value == 0
        found = bound(arrivals, shrinking.targets(), conditions=shrinking.conditions())
        assert found.value == pytest.approx(50)


def test_devices_of_a_box_share_its_link_and_boxes_do_not():
    boxes = [
        {"name": name, "link": {"rtt_ms": 2, "mbps": 80}, "devices": [{"id": "x"}, {"id": "y"}]}
        for name in ("press", "paint")
    ]
    models = [{"name": "a", "base_ms": 2, "batches": [1]}]
    text = {"models": models, "boxes": [{"devices": [{"id": "z"}]}, *boxes]}
    fleet = parse_fleet(text, None, "fleet.yaml", Path())
    found = {name: each.link for name, each in fleet.conditions().items()}
    assert found["z"] is None
    assert found["press/x"] == found["press/y"] == SharedLink("press/x", 100.0)
    assert found["paint/x"] == found["paint/y"] == SharedLink("paint/x", 100.0)


@given(pieces, st.integers(0, 40), st.integers(1, 200))
def test_no_span_of_a_recording_carries_more_than_its_mean_and_its_burst(shape, at_ns, size):
    capacity = recorded(shape, 1, 7)
    mean = capacity.period_bytes / capacity.period_ns
    span_ns = capacity.transfer_ns(at_ns, size)
    assert size <= mean * span_ns + capacity.burst_bytes + CLOSE


def test_links_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="transfer"):
        Conditions(byte_ns=-1.0)
    with pytest.raises(ValueError, match="transfer"):
        Conditions(link=SharedLink("wire", 1.0, -1))
    with pytest.raises(ValueError, match="two different links have the name 'wire'"):
        fluid_bound(
            [],
            [target("a", 1), target("b", 1)],
            conditions={"a": behind("wire", 1), "b": behind("wire", 2)},
        )

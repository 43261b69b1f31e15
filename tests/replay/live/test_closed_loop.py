"""Clients that wait for each answer before they ask again: simulated, and against a box."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import make_policy
from replay.live.endings import LiveEnding
from replay.live.replay import play_live
from replay.results import RunResult
from replay.simulator import Ending, Simulator
from replay.workloads import Clients, ClientStream, Fixed, Mix, MixEntry, WorkloadError
from replay.workloads import parse_workload as parse
from replay.workloads.clients import TURN_NS
from scheduler.core.requests import RequestClass
from tests.core.world import MS, offer, target

MIX = [{"model": "m", "deadline_ms": 1000}]


def clients(
    count: int, think_ms: float = 0.0, deadline_ms: float = 1000.0, **limits: Any
) -> Clients:
    mix = Mix([MixEntry("m", deadline_ms=Fixed(deadline_ms))])
    return Clients(ClientStream(count, mix, Fixed(think_ms)), 1, **limits)


def simulated(asking: Clients) -> list[Ending]:
    """With one device that takes 5 ms for each request."""
    profile = target("cpu:0", offer(sizes=(1,), base_ms=5.0))
    simulator = Simulator(make_policy("edf"), [profile], lambda _run, _kind: 5 * MS)
    return list(simulator.serve(asking))


def most_out(spans: Sequence[tuple[int, int]]) -> int:
    """How many were under way at once; what ends at a moment ends before what begins then."""
    steps = sorted([(end, -1) for _, end in spans] + [(begin, 1) for begin, _ in spans])
    out = most = 0
    for _, change in steps:
        out += change
        most = max(most, out)
    return most


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 12),
    think_ms=st.sampled_from([0.0, 1.0, 40.0]),
    deadline_ms=st.sampled_from([0.5, 12.0, 1000.0]),
)
def test_no_client_asks_while_it_waits(count, think_ms, deadline_ms):
    asking = clients(count, think_ms, deadline_ms, most=200)
    endings = simulated(asking)
    assert len(endings) == 200
    assert most_out([(each.arrival.at_ns, each.at_ns) for each in endings]) <= count
    assert asking.out == 0


@pytest.mark.parametrize("think_ms", [0.0, 15.0])
def test_one_client_asks_once_a_turn(think_ms):
    """What it waits for, what it thinks, and the turn between them are all that there is."""
    asked = [each.arrival.at_ns for each in simulated(clients(1, think_ms, most=50))]
    turn_ns = 5 * MS + TURN_NS + int(think_ms * MS)
    assert [later - sooner for sooner, later in pairwise(asked)] == [turn_ns] * 49


def test_many_clients_are_served_as_fast_as_the_device_can():
    endings = simulated(clients(20, end_ns=10_000 * MS))
    served = [each for each in endings if each.in_time]
    assert len(served) == pytest.approx(10_000 / 5, rel=0.02)


def test_who_is_refused_at_once_does_not_stop_the_clock():
    endings = simulated(clients(3, deadline_ms=0.001, end_ns=20 * MS))
    assert not any(each.in_time for each in endings)
    assert len(endings) == 3 * 20 * MS // TURN_NS


def test_same_seed_and_same_answers_are_the_same_requests():
    def asked() -> list[int]:
        return [each.arrival.at_ns for each in simulated(clients(5, 3.0, most=80))]

    assert asked() == asked()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 0}, "clients should be how many there are, from 1; got 0"),
        ({"clients": None}, "clients should be how many there are, from 1"),
        ({"think_ms": -1}, "think_ms should be ms from 0"),
        ({"rate_per_s": 5}, "rate_per_s is no key"),
        ({"seconds": None}, "has no end; give it seconds or requests"),
    ],
)
def test_what_clients_are_not(changes, said):
    whole = {"process": "clients", "clients": 3, "seconds": 5, "mix": MIX}
    data = {key: value for key, value in {**whole, **changes}.items() if value is not None}
    with pytest.raises(WorkloadError, match=said):
        parse(data)


def test_clients_stand_alone_and_have_no_load():
    mine = {"process": "clients", "clients": 3, "mix": MIX}
    others = {"process": "constant", "rate_per_s": 5, "mix": MIX}
    with pytest.raises(WorkloadError, match="must be the only stream"):
        parse({"seconds": 5, "streams": [others, mine]})
    with pytest.raises(WorkloadError, match="the load of clients can't be set"):
        parse({"seconds": 5, **mine}).with_load(0.5)


@pytest.fixture
def replay(laxity, tmp_path: Path, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Plays eight clients on one device, with more words on the command line."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(
        "models: [{name: m, base_ms: 5, per_item_ms: 1, jitter: 0.1, batches: [1, 2]}]\n"
        "boxes: [{devices: [{id: 'cpu:0'}]}]\n"
    )
    Path("work.yaml").write_text(
        "seconds: 2\nprocess: clients\nclients: 8\nthink_ms: {uniform: [0, 20]}\n"
        "mix: [{model: m, deadline_ms: 20}]\n"
    )
    return lambda *words: laxity("replay", "work.yaml", "--fleet", "fleet.yaml", *words)


def test_a_replay_tells_what_is_on_time_per_second_and_has_no_bound(replay):
    status, out, err = replay("--policy", "edf,fcfs", "--report", "r.html", "--full", "all.json")
    assert status == 0, err
    assert "on time/s" in out
    assert "of bound" not in out
    assert "edf less fcfs" not in out, "they were asked for unlike requests"
    for told in (out, Path("r.html").read_text()):
        assert "Clients waited for each answer" in " ".join(told.split())
    per_s = re.search(r"edf +[0-9.]+ +([0-9.]+)", out)
    assert per_s is not None
    assert 100 < float(per_s[1]) < 300


def test_a_result_keeps_that_clients_waited():
    result = RunResult("s", "edf", 1, closed=True)
    assert RunResult.from_data(result.to_data()).closed
    assert not RunResult.from_data(RunResult("s", "edf", 1).to_data()).closed


def test_clients_have_no_load_on_the_command_line_either(replay):
    status, out, err = replay("--load", "0.5")
    assert (status, out) == (2, "")
    assert "they ask as fast as they are answered" in err


def test_a_running_box_is_asked_by_no_more_at_once(box):
    endings: list[LiveEnding] = []
    mix = Mix([MixEntry("digits", deadline_ms=Fixed(20_000.0))])
    asking = Clients(ClientStream(3, mix, Fixed(1.0)), 1, most=60)
    tally = play_live(box.url, asking, endings.append)
    assert (tally.sent, tally.ended, tally.on_time) == (60, 60, 60)
    assert {each.arrival.kind for each in endings} == {RequestClass("digits")}
    assert most_out([(each.sent_ns, each.at_ns) for each in endings]) <= 3
    assert sorted(each.number for each in endings) == list(range(60))


def test_clients_of_a_running_box_are_of_one_process(box):
    with pytest.raises(ValueError, match="played by one process"):
        play_live(box.url, clients(2, most=5), processes=2)

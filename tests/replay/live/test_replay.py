"""The live load generator: its schedule, its words, and what it says of its own lateness."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from replay.experiment import Experiment, PolicyChoice
from replay.live.endings import LiveEnding, LiveTally, Spread
from replay.live.experiment import _policy_in, play_experiment
from replay.live.inputs import random_inputs
from replay.live.player import Player
from replay.live.processes import LiveError
from replay.live.replay import play_live
from replay.planning import Ask
from replay.planning import plan as planned
from replay.results import LATE_ITSELF
from replay.simulator import Arrival
from scheduler import (
    AsyncClient,
    CancelledError,
    DeadlineInfeasible,
    InvalidInput,
    ModelNotFound,
    Result,
    Timing,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from tests.clock import Clock
from tests.core.world import MS
from tests.replay.fake_client import FakeClient

M = RequestClass("m")
X: dict[str, NDArray[Any]] = {"x": np.zeros(1, np.float32)}


def result(outcome: Outcome = Outcome.COMPLETED) -> Result:
    return Result(X, outcome, "cpu:0", "v", "x", 1, Timing(0, 0, 0, 0))


class Client(FakeClient):
    def answer_last(self, answer: Any = None) -> None:
        self.futures[-1].set_result(answer or result())


def play(
    client: Client,
    arrivals: Iterable[Arrival],
    clock: Callable[[], int] = Clock(),  # noqa: B008
    settle_s: float = 0.0,
    inputs: Callable[[RequestClass], Any] = lambda kind: X,
) -> list[LiveEnding]:
    endings: list[LiveEnding] = []

    async def scene() -> None:
        player = Player(cast(AsyncClient, client), inputs, endings.append, 0, settle_s, clock)
        await player.play(enumerate(arrivals))
        assert player.sent == len(endings)

    asyncio.run(scene())
    return endings


class TestPlayer:
    def test_nothing_is_held_back_while_nothing_comes_back(self):
        client = Client()

        def answer_all_at_the_end() -> None:
            if len(client.sent) == 5:
                for future in client.futures:
                    future.set_result(result())

        client.on_submit = answer_all_at_the_end
        endings = play(client, [Arrival(0, M, 50 * MS)] * 5)
        assert [(e.number, e.outcome, e.on_time) for e in endings] == [
            (number, "completed", True) for number in range(5)
        ]

    def test_latency_and_deadline_count_from_when_it_was_due(self):
        client, clock = Client(), Clock()
        clock.now_ns = 30 * MS

        def answer_later() -> None:
            clock.now_ns += 15 * MS
            client.answer_last()

        client.on_submit = answer_later
        first, second = play(client, [Arrival(0, M, 50 * MS), Arrival(10 * MS, M, 50 * MS)], clock)
        assert [sent["deadline_ms"] for sent in client.sent] == [20.0, 15.0]
        assert (first.arrival.at_ns, first.sent_ns, first.lag_ns) == (0, 30 * MS, 30 * MS)
        assert (second.arrival.at_ns, second.sent_ns, second.lag_ns) == (10 * MS, 45 * MS, 35 * MS)
        assert (second.latency_ns, second.on_time) == (50 * MS, True)

    def test_what_comes_back_too_late_for_the_caller_is_not_on_time(self):
        client, clock = Client(), Clock()

        def answer_late() -> None:
            clock.now_ns += 60 * MS
            client.answer_last()

        client.on_submit = answer_late
        (ending,) = play(client, [Arrival(0, M, 50 * MS, accept_late=True)], clock)
        assert (ending.outcome, ending.latency_ns, ending.on_time) == ("completed", 60 * MS, False)

    def test_a_request_that_is_due_after_its_deadline_goes_out_all_the_same(self):
        client, clock = Client(), Clock()
        clock.now_ns = 1000 * MS
        client.on_submit = client.answer_last
        play(client, [Arrival(0, M, 50 * MS)], clock)
        assert [sent["deadline_ms"] for sent in client.sent] == [0.001]

    def test_how_long_the_box_had_a_request_is_known_of_its_result(self):
        client = Client()
        answers = iter([Timing(1, 2, 3, 7 * MS), None])

        def answer() -> None:
            timing = next(answers)
            if timing is None:
                client.futures[-1].set_exception(DeadlineInfeasible("no"))
            else:
                found = Result(X, Outcome.COMPLETED, "cpu:0", "v", "x", 1, timing)
                client.answer_last(found)

        client.on_submit = answer
        endings = play(client, [Arrival(0, M, 50 * MS)] * 2)
        assert [ending.held_ns for ending in endings] == [7 * MS, None]

    def test_everything_that_a_request_is_reaches_the_box(self):
        client = Client()
        client.on_submit = client.answer_last
        kind = RequestClass("m", "int8")
        play(client, [Arrival(0, kind, 50 * MS, priority=1, weight=2.5, accept_late=True)])
        assert client.sent == [
            {
                "model": "m",
                "inputs": X,
                "deadline_ms": 50.0,
                "variant": "int8",
                "priority": 1,
                "weight": 2.5,
                "accept_late": True,
            }
        ]

    def test_how_each_ended_is_noted(self):
        client = Client()
        ends: list[Callable[[asyncio.Future[Any]], None]] = [
            lambda future: future.set_result(result(Outcome.LATE)),
            lambda future: future.set_exception(DeadlineInfeasible("no target")),
            lambda future: future.set_exception(CancelledError()),
            lambda future: None,
        ]
        client.on_submit = lambda: ends[len(client.sent) - 1](client.futures[-1])
        endings = play(client, [Arrival(0, M, 0)] * 4)
        assert [(e.number, e.outcome, e.reason) for e in endings] == [
            (0, "late", ""),
            (1, "infeasible", "no target"),
            (2, "cancelled", ""),
            (3, None, "given up"),
        ]
        assert client.futures[3].cancelled()

    def test_what_cannot_be_made_or_sent_is_an_ending_like_others(self):
        client = Client()

        def refuse() -> None:
            raise InvalidInput("too many dimensions")

        def unknown(kind: RequestClass) -> Any:
            if kind.model == "q":
                raise ModelNotFound("no model 'q'")
            return X

        client.on_submit = refuse
        plan = [Arrival(0, RequestClass("q"), MS), Arrival(0, M, MS)]
        endings = play(client, plan, inputs=unknown)
        assert [(e.outcome, e.reason) for e in endings] == [
            ("model_not_found", "no model 'q'"),
            ("invalid_input", "too many dimensions"),
        ]

    def test_requests_are_read_as_they_are_due_and_not_before(self):
        client = Client()
        read = 0

        def plan() -> Iterator[Arrival]:
            nonlocal read
            for _ in range(50):
                read += 1
                assert read == len(client.sent) + 1
                yield Arrival(0, M, 50 * MS)

        client.on_submit = client.answer_last
        assert len(play(client, plan())) == 50


class TestTally:
    @given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.floats(0.01, 1))
    def test_a_spread_tells_quantiles_to_two_percent(self, values, quantile):
        spread = Spread()
        for value in values:
            spread.add(value)
        rank = int(np.ceil(quantile * len(values))) - 1
        true = sorted(values)[rank]
        found = spread.quantile(quantile)
        assert found is not None
        assert true * (1 - 1e-9) <= found <= true * 1.021

    def test_a_spread_of_nothing_has_no_quantiles(self):
        assert Spread().quantile(0.5) is None

    def test_it_counts_what_came_of_the_requests(self):
        tally = LiveTally()
        for outcome, at_ns in (("completed", 5), ("completed", 500), ("late", 300), (None, 900)):
            tally.add(LiveEnding(0, Arrival(0, M, 100), 0, outcome, at_ns))
        assert tally.outcomes == {"completed": 2, "late": 1, "none": 1}
        assert (tally.on_time, tally.ended) == (1, 4)

    @pytest.mark.parametrize(
        ("lag_ns", "budget_ms", "told"),
        [
            (0, 50, None),
            (900_000, 50, None),
            (1_200_000, 50, "1.2 ms"),
            (300_000, 2, "(15% of their deadline)"),
        ],
    )
    def test_a_generator_that_was_late_says_so(self, lag_ns, budget_ms, told):
        tally = LiveTally()
        for number in range(100):
            tally.add(LiveEnding(number, Arrival(0, M, budget_ms * MS), lag_ns, "completed", MS))
        warning = tally.warning()
        assert warning is None if told is None else told in str(warning)

    def test_a_rate_beyond_what_can_be_sent_is_told_with_what_could(self):
        tally = LiveTally()
        for number in range(2_000):
            arrival, sent_ns = Arrival(number * MS // 2, M, 50 * MS), number * 5 * MS
            tally.add(LiveEnding(number, arrival, sent_ns, "expired", sent_ns + MS))
        assert str(tally.warning()).startswith(
            f"{LATE_ITSELF}: half of its requests went out after their deadline, since 2,001 a "
            "second were due and it sent 200, so this tells nothing of the box"
        )

    def test_one_request_in_a_thousand_is_not_a_generator_that_was_late(self):
        tally = LiveTally()
        for number in range(1000):
            lag_ns = 9 * MS if number == 5 else 0
            tally.add(LiveEnding(number, Arrival(0, M, 50 * MS), lag_ns, "completed", MS))
        assert tally.warning() is None
        assert LiveTally().warning() is None


def test_what_ctrl_c_cuts_off_while_it_is_waited_for_has_no_end():
    ended: list[LiveEnding] = []

    async def scene() -> None:
        client: Any = Client()
        player = Player(client, lambda _: X, ended.append, 0, 60.0, lambda: 0)
        playing = asyncio.ensure_future(player.play([(0, Arrival(0, M, 60_000 * MS))]))
        while not client.futures:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert client.futures[0].cancelled()

    asyncio.run(scene())
    assert ended == []


def test_time_begins_when_the_first_request_is_found(box):
    ended: list[LiveEnding] = []

    def slow() -> Iterator[Arrival]:
        time.sleep(0.5)
        yield from chance_plan(3)

    play_live(box.url, slow(), ended.append)
    assert len(ended) == 3
    # Had time begun before it, all of them would be late; a busy machine may hold up one.
    assert min(ending.lag_ns for ending in ended) < 200 * MS


@pytest.mark.parametrize(("target", "told"), [("cpu:0", False), ("cache", True)])
def test_what_the_cache_of_a_box_answered_is_told(tmp_path, monkeypatch, target, told):
    def play(url, arrivals, on_end, **_):
        for number, arrival in enumerate(arrivals):
            where = target if number else "cpu:0"
            on_end(LiveEnding(number, arrival, 0, "completed", MS, target=where))
        return LiveTally()

    monkeypatch.setattr("replay.live.experiment.play_live", play)
    monkeypatch.setattr("replay.live.experiment._status_of", lambda url: {})
    notes = play_experiment(experiment_in(tmp_path), 1).notes
    said = [note for note in notes if "cache" in note]
    assert ["answers to 2 of 3 requests" in note for note in said] == [True] * told


@pytest.mark.parametrize("again", [False, True])
def test_a_box_that_is_started_again_meanwhile_is_told(tmp_path, monkeypatch, again):
    def play(url, arrivals, on_end, **_):
        return LiveTally()

    lives = iter([{"pid": 1}, {"pid": 1 + again}])
    monkeypatch.setattr("replay.live.experiment.play_live", play)
    monkeypatch.setattr("replay.live.experiment._status_of", lambda url: next(lives))
    notes = play_experiment(experiment_in(tmp_path), 1).notes
    assert ["was started again meanwhile" in note for note in notes] == [True] * again


class TestInputs:
    MODELS: Mapping[str, Any] = {
        "models": [
            {
                "name": "m",
                "inputs": [
                    {"name": "image", "dtype": "float32", "shape": [3, None]},
                    {"name": "index", "dtype": "int64", "shape": []},
                ],
            }
        ]
    }

    def test_they_fit_the_signature_and_the_class(self):
        inputs = random_inputs(self.MODELS, seed=1)
        free = inputs(M)
        assert {name: (x.shape, x.dtype.name) for name, x in free.items()} == {
            "image": ((3, 1), "float32"),
            "index": ((), "int64"),
        }
        shaped = inputs(RequestClass("m", shapes=((3, 7), ())))
        assert shaped["image"].shape == (3, 7)
        assert 0 <= shaped["image"].min() < shaped["image"].max() < 1
        assert inputs(M) is free

    def test_the_seed_decides(self):
        one, same, other = (random_inputs(self.MODELS, seed)(M)["image"] for seed in (1, 1, 2))
        assert (one == same).all()
        assert (one != other).any()

    def test_integers_are_zeros(self):
        assert not random_inputs(self.MODELS)(M)["index"].any()

    def test_texts_are_as_long_as_their_class(self):
        spec = {"name": "text", "dtype": "string", "shape": [2]}
        models = {"models": [{"name": "m", "inputs": [spec]}]}
        make = random_inputs(models, 1)
        assert make(M)["text"].tolist() == [b"x"] * 2
        assert make(RequestClass("m", shapes=((2, 16),)))["text"].tolist() == [b"x" * 16] * 2

    def test_what_the_box_does_not_have_is_refused(self):
        inputs = random_inputs(self.MODELS)
        with pytest.raises(ModelNotFound, match="did you mean 'm'"):
            inputs(RequestClass("mm"))
        with pytest.raises(InvalidInput, match="takes 2 inputs, the request has 1"):
            inputs(RequestClass("m", shapes=((3, 7),)))


# -- against a real server of the protocol


WORK = """
{requests: 3, process: poisson, rate_per_s: 500, mix: [{model: digits, deadline_ms: 20000}]}
"""
FLEET = """
models: [{name: digits, base_ms: 5, per_item_ms: 1, batches: [1]}]
boxes: [{devices: [{id: "cpu:0"}]}]
"""


def chance_plan(count: int) -> list[Arrival]:
    chance = random.Random(1)
    times = sorted(chance.randrange(300 * MS) for _ in range(count))
    return [Arrival(at_ns, RequestClass("digits"), 20_000 * MS) for at_ns in times]


def failing_inputs(models: Mapping[str, Any]) -> Any:
    raise InvalidInput(f"no inputs for {models['models'][0]['name']} today")


def dying_inputs(_models: Mapping[str, Any]) -> Any:
    os._exit(3)


@pytest.mark.parametrize("processes", [1, 3])
def test_every_request_is_sent_once_and_ends_once_in_order_of_time(box, processes):
    plan = chance_plan(2000)
    endings: list[LiveEnding] = []
    looks: list[int] = []
    tally = play_live(
        box.url, plan, endings.append, processes=processes, progress=lambda t: looks.append(t.ended)
    )
    assert sorted(ending.number for ending in endings) == list(range(2000))
    for ending in endings:
        assert ending.arrival == plan[ending.number]
        assert ending.arrival.at_ns <= ending.sent_ns <= ending.at_ns
        assert (ending.target, ending.variant) == ("cpu:0", "fp32")
    times = [ending.at_ns for ending in endings]
    assert times == sorted(times)
    assert (tally.sent, tally.ended, tally.on_time) == (2000, 2000, 2000)
    assert tally.outcomes == {"completed": 2000}
    assert looks[-1] == 2000
    assert len(box.messages("infer")) == 2000
    assert len(box.messages("hello")) == processes


def test_no_more_requests_have_ended_than_were_sent(box, monkeypatch):
    monkeypatch.setattr("replay.live.replay.PROGRESS_S", 0.01)
    seen: list[LiveTally] = []
    counts: list[tuple[int, int]] = []
    play_live(
        box.url,
        chance_plan(500),
        lambda _: counts.extend((each.ended, each.sent) for each in seen[-1:]),
        progress=seen.append,
    )
    assert counts
    assert all(ended <= sent for ended, sent in counts)


@pytest.mark.parametrize("processes", [1, 2])
def test_refusals_and_silence_are_endings(box, processes):
    def now_and_then(peer: Any, header: Any) -> None:
        match header["priority"]:
            case 0:
                peer.refuse(header, "infeasible", "no target can")
            case 1:
                pass
            case _:
                peer.answer(header)

    box.on_infer = now_and_then
    plan = [replace(a, priority=n % 4 if n % 4 < 3 else 4) for n, a in enumerate(chance_plan(40))]
    plan = [replace(a, budget_ns=50 * MS) if a.priority == 1 else a for a in plan]
    endings: list[LiveEnding] = []
    play_live(box.url, plan, endings.append, processes=processes)
    assert Counter(ending.outcome for ending in endings) == {
        "completed": 20,
        "infeasible": 10,
        "expired": 10,
    }
    assert {e.reason for e in endings if e.outcome == "infeasible"} == {"no target can"}


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_to_send_is_soon_done(box, processes):
    assert play_live(box.url, [], processes=processes).ended == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_what_fails_before_the_first_request_is_raised(box, processes):
    with pytest.raises(InvalidInput, match="no inputs for digits today"):
        play_live(box.url, [], make_inputs=failing_inputs, processes=processes)


def test_a_process_that_dies_ends_the_replay(box):
    with pytest.raises(LiveError, match=r"process \d of the load generator has died"):
        play_live(box.url, chance_plan(10), make_inputs=dying_inputs, processes=2)


def test_a_schedule_that_cannot_be_read_on_ends_the_replay(box):
    def plan() -> Iterator[Arrival]:
        yield from chance_plan(300)
        raise OSError("the trace is gone")

    for processes in (1, 2):
        with pytest.raises(OSError, match="the trace is gone"):
            play_live(box.url, plan(), processes=processes)


def test_no_process_is_no_way_to_send(tmp_path):
    with pytest.raises(ValueError, match="processes is an integer from 1"):
        play_live(f"unix://{tmp_path}/s", [], processes=0)


def test_a_policy_is_told_as_a_replay_takes_it():
    policy = {"name": "hedge", "inner": {"name": "goodput", "quantile": None}}
    assert dict(PolicyChoice.parse(_policy_in({"policy": policy})).options) == {
        "inner": policy["inner"]
    }


def experiment_in(folder: Path) -> Experiment:
    (folder / "work.yaml").write_text(WORK)
    (folder / "fleet.yaml").write_text(FLEET)
    (found,) = planned(Ask(str(folder / "work.yaml"), fleet=str(folder / "fleet.yaml")))
    return found


def test_a_model_that_the_box_lacks_is_told_before_anything_is_sent(box, tmp_path):
    experiment = experiment_in(tmp_path)
    box.models = {"models": [{**box.models["models"][0], "name": "faces"}]}
    box.on_infer = lambda peer, header: pytest.fail("a request was sent")
    with pytest.raises(ModelNotFound, match="the box has no model 'digits'; there are faces"):
        play_experiment(experiment, 1, box.url)


def test_of_the_models_that_a_trace_may_name_the_box_needs_those_that_it_names(box, tmp_path):
    models = "[{name: digits, base_ms: 5}, {name: faces, base_ms: 9}]"
    fleet = tmp_path / "two.yaml"
    fleet.write_text(f'models: {models}\nboxes: [{{devices: [{{id: "cpu:0"}}]}}]\n')
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_ms,model,deadline_ms\n0,digits,20000\n5,digits,20000\n")
    (experiment,) = planned(Ask(str(trace), fleet=str(fleet)))
    assert play_experiment(experiment, 1, box.url).outcomes() == {"completed": 2}
    trace.write_text("arrival_ms,model,deadline_ms\n0,digits,20000\n5,faces,20000\n")
    result = play_experiment(experiment, 1, box.url)
    assert result.outcomes() == {"completed": 1, "model_not_found": 1}
    assert any("because: the box has no model 'faces'" in note for note in result.notes)


@pytest.mark.parametrize("processes", [1, 2])
def test_why_requests_failed_is_told(box, tmp_path, processes):
    box.on_infer = lambda peer, header: peer.refuse(header, "failed", "the device caught fire")
    result = play_experiment(experiment_in(tmp_path), 1, box.url, processes)
    count = result.total().requests
    assert result.outcomes() == {"failed": count}
    told = f"{count} of {count} requests failed (failed), the first because: the device caught fire"
    assert told in result.notes


@pytest.mark.parametrize("processes", [1, 2])
def test_how_well_the_generator_kept_to_its_schedule_is_told(box, tmp_path, processes):
    lag = play_experiment(experiment_in(tmp_path), 1, box.url, processes).send_lag
    assert lag is not None
    assert 0 < lag.p50_ms <= lag.p99_ms <= lag.max_ms


def test_a_policy_that_was_swapped_meanwhile_is_said(box, tmp_path):
    inner = {"name": "spill", "inner": {"name": "edf"}}
    hedge = {"name": "hedge", "extra": 0.1, "inner": inner}

    def swap(peer: Any, header: Any) -> None:
        box.status = {"policy": {**hedge, "extra": 0.2}}
        peer.answer(header)

    experiment = experiment_in(tmp_path)
    box.status = {"policy": hedge}
    before, after = (
        f"hedge?extra={extra}&inner={{name: spill, inner: edf}}" for extra in (0.1, 0.2)
    )
    assert PolicyChoice.parse(before).options == (
        ("extra", 0.1),
        ("inner", inner | {"inner": "edf"}),
    )
    swapped = f"the box's policy was swapped meanwhile, from {before} to {after}"
    result = play_experiment(experiment, 1, box.url)
    assert (result.policy, swapped in result.notes) == (before, False)
    box.on_infer = swap
    result = play_experiment(experiment, 1, box.url)
    assert result.notes[-1] == swapped  # it may have been late itself before


def test_a_policy_that_was_swapped_there_and_back_is_said(box, tmp_path):
    def swap(peer: Any, header: Any) -> None:
        box.status = {"policy": {"name": "edf"}, "policy_swaps": 3}
        peer.answer(header)

    box.status = {"policy": {"name": "edf"}, "policy_swaps": 1}
    box.on_infer = swap
    result = play_experiment(experiment_in(tmp_path), 1, box.url)
    assert result.notes[-1] == "the box's policy was swapped meanwhile, and then back to edf"


def test_what_came_of_a_box_that_is_gone_at_the_end_is_told(box, tmp_path):
    def go(peer: Any, header: Any) -> None:
        box.path.unlink(missing_ok=True)
        peer.answer(header)

    (tmp_path / "work.yaml").write_text(WORK)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (experiment,) = planned(Ask(str(tmp_path / "work.yaml"), fleet=str(tmp_path / "fleet.yaml")))
    box.on_infer = go
    result = play_experiment(experiment, 1, box.url)
    assert result.total().requests > 0
    assert "the box was gone at the end: cannot reach the daemon" in result.notes[-1]

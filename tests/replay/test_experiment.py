"""Experiments and their results: the same seed gives the same bytes, and nothing is lost."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from subprocess import PIPE, Popen, run
from typing import NamedTuple

import psutil
import pytest

from replay.accuracy import Accuracy
from replay.experiment import Experiment, PolicyChoice
from replay.fleet.file import parse_fleet
from replay.fleet.model import Fleet
from replay.pool import run_all
from replay.report import summary
from replay.results import Row, Rows, RunResult, read_results, results_json, write_results
from replay.simulator import Arrival
from replay.sources import WorkloadSource, load_of
from replay.workloads import parse_workload
from tests.waiting import PATIENCE_S, eventually

EDF, FCFS = PolicyChoice.parse("edf"), PolicyChoice.parse("fcfs")


def fleet(**keys) -> Fleet:
    models = [
        {"name": "a", "base_ms": 10, "jitter": 0.2, "batches": [1]},
        {"name": "b", "base_ms": 5, "jitter": 0.1, "batches": [1]},
    ]
    devices = [
        {"id": "cpu:0", "slots": 1},
        {"id": "gpu:0", "slots": 1, "time_scale": 0.5, "cost_per_request": 0.25},
    ]
    data = {"models": models, "boxes": [{"devices": devices}], **keys}
    return parse_fleet(data, None, "test", Path())


def experiment(requests: int = 400, load: float = 0.8, deadline_scale: float = 5, **keys):
    entry = {"deadline_scale": deadline_scale}
    workload = parse_workload(
        {
            "requests": requests,
            "process": "poisson",
            "load": load,
            "mix": [{"model": "a", **entry}, {"model": "b", "weight": 3, "priority": 1, **entry}],
        }
    )
    return Experiment("test", WorkloadSource(workload), fleet(**keys), load_of(workload))


def row(number: int, on_time: bool = True, outcome: str = "completed") -> Row:
    end_ns = number * 10 + 1_000_000 * (number + 1)
    return Row(number * 10, "m", "v", "cpu:0", 3, 1.0, 5, outcome, end_ns, on_time)


def replace_in(before: Row, **changes: str) -> Row:
    return Row(**{name: getattr(before, name) for name in Row.__slots__} | changes)


# -- accuracy


def choice_of(**accuracies: float | None) -> tuple[Fleet, Accuracy]:
    """A fleet with variants of these accuracies of `m`, and a model without a choice."""
    models = [
        {"name": "m", "variant": variant, "base_ms": 10, "accuracy": accuracy}
        for variant, accuracy in accuracies.items()
    ]
    alone = {"name": "alone", "base_ms": 10, "accuracy": 0.5}
    found = fleet(models=[*models, alone])
    return found, Accuracy(found.targets())


def test_accuracy_is_a_share_of_the_best_of_each_model():
    _, accuracy = choice_of(big=0.8, small=0.6)
    for number, (variant, on_time) in enumerate([("big", True), ("small", True), ("small", False)]):
        accuracy.add(replace_in(row(number, on_time), variant=variant))
    assert accuracy.share() == pytest.approx((0.8 + 0.6) / (0.8 + 0.8))
    for number in range(1000):  # what the other model is served doesn't count as a loss
        accuracy.add(replace_in(row(number), model="alone", variant="default"))
    share = accuracy.share()
    assert share is not None
    assert 0.998 < share < 1


@pytest.mark.parametrize("accuracies", [{"big": 0.8}, {"big": 0.8, "small": 0.8}, {"big": None}])
def test_without_a_choice_there_is_no_accuracy_to_tell(accuracies):
    _, accuracy = choice_of(**accuracies)
    accuracy.add(replace_in(row(0), variant="big"))
    assert accuracy.share() is None


def test_an_experiment_tells_the_accuracy_of_variants_that_differ_in_it():
    found, _ = choice_of(big=0.8, small=0.6)
    mix = [{"model": "m", "deadline_ms": 1000, "variant": v} for v in ("big", "small")]
    workload = parse_workload({"requests": 400, "process": "poisson", "load": 0.2, "mix": mix})
    result = Experiment("test", WorkloadSource(workload), found).simulate(EDF, 1)
    assert result.accuracy_share == pytest.approx((0.8 + 0.6) / (2 * 0.8), abs=0.03)
    assert summary([result])[0]["accuracy_share"] == result.accuracy_share
    assert RunResult.from_data(result.to_data()) == result
    assert experiment().simulate(EDF, 1).accuracy_share is None


# -- determinism


def test_the_same_seed_gives_the_same_bytes_on_any_machine():
    """The digest pins workload, service times, order of events and form of the results. Deadlines
    are long, batches single and none waits ahead, so that no prediction has a part in it."""
    result = experiment(deadline_scale=10_000).simulate(FCFS, 7)
    result.calibration = []
    digest = hashlib.sha256(results_json([result]).encode()).hexdigest()
    assert digest == "d69951fecdb52595d395be069d95844099853c7b1153bd830014bf366783c19d"


def test_processes_and_seeds_change_nothing():
    small = experiment(requests=40)
    alone = run_all([small], [EDF, FCFS], [1, 2])
    shared = run_all([small], [EDF, FCFS], [1, 2], jobs=2)
    assert results_json(alone) == results_json(shared)
    assert [(r.policy, r.seed) for r in alone] == [
        ("edf", 1), ("fcfs", 1), ("edf", 2), ("fcfs", 2)
    ]  # fmt: skip


PLAYED = """
from policies import POLICIES
from replay.experiment import PolicyChoice
from replay.results import results_json
from replay.scenarios import standard_scenarios

for name in ("load-1_2", "unlike-models"):
    case = standard_scenarios(name)[0].experiment(requests=150)
    print(results_json([case.simulate(PolicyChoice.parse(p), 1) for p in sorted(POLICIES)]))
"""


def test_how_texts_are_hashed_changes_nothing():
    told = [
        run(
            [sys.executable, "-c", PLAYED],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert b"goodput" in told[0]
    assert told[0] == told[1]


ENDLESS = """
from replay.experiment import PolicyChoice
from replay.pool import run_all
from replay.scenarios import standard_scenarios

long = standard_scenarios("load-1_2")[0].experiment(requests=1_000_000)
run_all([long], [PolicyChoice.parse("fcfs")], range(2000), jobs=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_at_once_with_their_parent_and_leave_nothing(number, tmp_path):
    """Ctrl-C is heard by all of the group; nobody can hear a kill but by what it leaves."""
    command, env = [sys.executable, "-c", ENDLESS], os.environ | {"TMPDIR": str(tmp_path)}
    with Popen(command, env=env, start_new_session=True, stderr=PIPE) as parent:
        alive = psutil.Process(parent.pid)
        # One of them is a tracker, which ends when the others have.
        eventually(lambda: sum(p.cpu_times().user > 1 for p in alive.children()) >= 2)
        children = alive.children()
        (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
        assert psutil.wait_procs(children, PATIENCE_S)[1] == []
        assert parent.stderr is not None
        assert b"Exception in thread" not in parent.stderr.read()
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import os, signal, sys
if "--multiprocessing-fork" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_while_processes_are_loaded_leaves_no_traceback_of_theirs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    found = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command, env = [sys.executable, "-c", ENDLESS], os.environ | {"PYTHONPATH": found}
    ended = run(command, env=env, capture_output=True, text=True)
    assert "a simulation process died" in ended.stderr
    assert "KeyboardInterrupt" not in ended.stderr


def test_a_process_that_dies_is_said():
    dying = Experiment("dying", _Dying(), fleet())
    with pytest.raises(ChildProcessError, match="a simulation process died"):
        run_all([dying], [EDF], [1, 2], jobs=2)


class _Dying:
    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        os._exit(9)


def test_policies_are_given_the_same_requests():
    made = experiment(requests=50, load=1.2)
    edf, fcfs = made.run([EDF, FCFS], 3)
    assert sorted(r.intended_ns for r in edf.rows) == sorted(r.intended_ns for r in fcfs.rows)
    assert edf.bound == fcfs.bound
    different = made.simulate(EDF, 4)
    assert [r.intended_ns for r in edf.rows] != [r.intended_ns for r in different.rows]


# -- what is measured


class Growing(NamedTuple):
    """A source with more requests at each look, as a trace that is still written."""

    source: WorkloadSource
    looks: list[int]

    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        self.looks.append(seed)
        return islice(self.source.arrivals(seed, fleet), 20 + len(self.looks))


def test_policies_that_got_other_requests_are_said_to_have():
    steady = experiment(requests=60)
    changed = replace(steady, source=Growing(steady.source, []), with_bound=False)
    told = "test changed while it was played: policies got 21 to 22 requests, so they can't be "
    for result in changed.run([EDF, FCFS], 1):
        assert [note for note in result.notes if note.startswith(told)]
    for result in steady.run([EDF, FCFS], 1):
        assert not [note for note in result.notes if "changed while" in note]


def test_no_bound_is_sought_above_all_of_it(monkeypatch):
    monkeypatch.setattr(Experiment, "bound", lambda *_: pytest.fail("sought"))
    edf, fcfs = experiment(load=0.1, deadline_scale=100).run([EDF, FCFS], 1)
    assert edf.bound == fcfs.bound == 1.0


def test_every_request_is_counted_once_and_the_bound_holds():
    made = experiment(load=1.5)
    (result,) = made.run([EDF], 1)
    total = result.total()
    assert total.requests == 400 == sum(total.outcomes.values()) == len(result.rows)
    assert result.bound is not None
    assert 0 < result.on_time_share() <= result.bound <= 1
    assert result.bound_share() == pytest.approx(result.on_time_share() / result.bound)
    groups = result.by("model")
    assert list(groups) == ["a", "b"]
    assert groups["b"].weight == 3 * groups["b"].requests
    assert list(result.by("priority")) == [1, 3]
    assert result.load == 1.5
    assert all(0 <= sample.queued <= 400 for sample in result.timeline)
    assert {target for sample in result.timeline for target in sample.busy} == {"cpu:0", "gpu:0"}


def test_each_step_says_how_it_stands():
    steps: list[Callable[[], str]] = []
    experiment(load=1.5).play([EDF], 1, steps.append)
    assert [says() for says in steps] == [
        "400 requests with 'edf' on test, load 1.5, seed 1",
        "the bound of test, load 1.5, seed 1",
    ]


def test_the_timeline_tells_how_busy_targets_are_and_how_much_waits():
    """Also where batches end, and requests come, in step: it may not look only then. At most
    as many wait as come while a batch runs, and the end is that of the last batch and not of
    deadlines."""
    one = {"name": "a", "base_ms": 9.9, "per_item_ms": 0.1, "jitter": 0, "batches": [1, 16]}
    data = {"models": [one], "boxes": [{"devices": [{"id": "cpu:0", "slots": 1}]}]}
    for rate_per_s, share, most in ((50, 0.5, 0), (1350, 1.0, 15)):
        mix = [{"model": "a", "deadline_ms": 60_000}]
        work = {"requests": 4000, "process": "constant", "rate_per_s": rate_per_s, "mix": mix}
        made = Experiment(
            "even", WorkloadSource(parse_workload(work)), parse_fleet(data, None, "one", Path())
        )
        samples = made.simulate(FCFS, 1).timeline
        assert 300 <= len(samples) <= 600
        busy = sum(sample.busy["cpu:0"] or 0 for sample in samples) / len(samples)
        assert busy == pytest.approx(share, abs=0.06)
        assert most <= max(sample.queued for sample in samples) <= 2 * most


def test_the_timeline_tells_a_target_that_is_down_from_an_idle_one():
    made = experiment(load=0.5, script=[{"at_s": 0, "target": "gpu:0", "event": "down"}])
    samples = made.simulate(EDF, 1).timeline
    assert {sample.busy["gpu:0"] for sample in samples} == {None}
    assert {sample.busy["cpu:0"] for sample in samples} >= {0, 1}


def test_the_timeline_ends_with_the_requests_whatever_is_scripted_for_later():
    """And a target is idle until a last request that is refused at once, not busy as before."""
    down = [{"at_s": at_s, "target": "cpu:0", "event": "down"} for at_s in (900, 1000)]
    many = {"process": "constant", "rate_per_s": 100, "end_s": 0.2}
    hopeless = {"process": "constant", "rate_per_s": 0.1}
    streams = [
        {**many, "mix": [{"model": "a", "deadline_ms": 60_000}]},
        {**hopeless, "mix": [{"model": "a", "deadline_ms": 0.1}]},
    ]
    work = parse_workload({"streams": streams, "seconds": 11})
    made = Experiment("short", WorkloadSource(work), fleet(script=down))
    result = made.simulate(EDF, 1)
    samples, said = result.timeline, "short: a run ended before any of the fleet's events and"
    assert [note for note in result.notes if said in note]
    assert 9.5e9 < samples[-1].at_ns <= 10e9
    assert sum(any(sample.busy.values()) for sample in samples) < len(samples) / 20


def test_events_that_no_request_meets_are_told_alike_whatever_the_seed():
    """Seeds end at different moments; a report has one line for all that miss some events."""
    down = [{"at_s": at_s, "target": "cpu:0", "event": "down"} for at_s in (0.5, 2, 900)]
    played = fleet(script=down)
    (none,), (some,) = played.missed(100_000_000), played.missed(1_000_000_000)
    assert "ended before any" in none
    assert "ended before some" in some
    assert "at 0.5 to 900 s" in some
    assert played.missed(3_000_000_000) == [some]
    assert played.missed(900_000_000_000) == fleet().missed(0) == []
    (alone,) = fleet(script=down[:1]).missed(0)
    assert "at 0.5 s" in alone


def test_what_targets_cost_is_added_up():
    result = experiment().simulate(EDF, 1)
    dear = sum(r.target == "gpu:0" for r in result.rows)
    assert dear > 0
    assert result.cost >= 0.25 * dear


def test_energy_is_added_up_and_costs_what_the_fleet_says():
    devices = [{"id": "cpu:0", "slots": 1, "power_w": 10}, {"id": "gpu:0", "slots": 1}]
    made = experiment(boxes=[{"devices": devices}], energy={"cost_per_kwh": 0.36})
    result = made.simulate(EDF, 1)
    (cpu, _) = made.fleet.targets()
    of_model = {offer.model: offer.energy_uj[1] for offer in cpu.offers}
    assert of_model == {"a": pytest.approx(1e5, rel=0.02), "b": pytest.approx(5e4, rel=0.02)}
    run = [of_model[r.model] for r in result.rows if r.target == "cpu:0"]
    assert result.energy_j >= sum(run) / 1e6 > 0
    assert result.cost == pytest.approx(result.energy_j * 1e-7)
    (summed,) = summary([result])
    assert summed["energy_j"] == result.energy_j


def test_energy_changes_nothing_for_the_default_policy():
    devices = [{"id": "cpu:0", "power_w": 10}, {"id": "gpu:0", "time_scale": 0.5, "power_w": 40}]
    goodput = PolicyChoice.parse("goodput")
    with_energy = experiment(boxes=[{"devices": devices}], energy={"cost_per_kwh": 0.36})
    idle = [{key: value for key, value in d.items() if key != "power_w"} for d in devices]
    without = experiment(boxes=[{"devices": idle}])
    drawing, plain = (made.simulate(goodput, 1) for made in (with_energy, without))
    assert list(drawing.rows) == list(plain.rows)
    assert drawing.cost > 0 == plain.cost


def test_promises_and_how_often_they_were_kept():
    points = experiment(requests=2_000).simulate(EDF, 1).calibration
    assert [promised for promised, _, _ in points] == [0.5, 0.75, 0.9, 0.95, 0.99]
    for promised, observed, count in points:
        assert count > 1_000
        assert observed == pytest.approx(promised, abs=0.06)


def test_a_policy_takes_options():
    assert PolicyChoice.parse("edf?quantile=0.5").make().quantile == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="did you mean 'edf'"):
        PolicyChoice.parse("efd")
    with pytest.raises(ValueError, match="quantil"):
        PolicyChoice.parse("edf?quantil=1")
    with pytest.raises(ValueError, match="KEY=VALUE"):
        PolicyChoice.parse("edf?quantile")
    with pytest.raises(ValueError, match="quantile is given twice"):
        PolicyChoice.parse("edf?quantile=0.5&quantile=0.9")
    with pytest.raises(ValueError, match=r"'spill\?inner=edf' is not known; .* \{name: spill, "):
        PolicyChoice.parse("hedge?inner=spill?inner=edf")


def test_a_million_requests_leave_a_bounded_result():
    result = RunResult("s", "p", 1, rows=Rows(limit=100))
    for number in range(5_000):
        result.add(row(number, on_time=number % 4 == 0))
    assert result.total().requests == 5_000
    assert result.on_time_share() == 0.25
    assert 50 <= len(result.rows) <= 100
    # Of each stride one.
    places = [r.intended_ns // 10 // result.rows.stride for r in result.rows]
    assert places == list(range(len(result.rows)))
    assert result.p50_ms() == pytest.approx(2_500, rel=0.03)


@pytest.mark.parametrize("cameras", [2, 3, 8, 64])
def test_what_is_kept_is_no_single_camera(cameras):
    result = RunResult("s", "p", 1, rows=Rows(limit=1_000))
    for number in range(100_000):
        result.add(row(number % cameras))
    kept = Counter(r.intended_ns for r in result.rows)
    assert len(kept) == cameras
    assert max(kept.values()) < 2 * len(result.rows) / cameras + 20


def test_quantiles_are_of_the_results():
    result = RunResult("s", "p", 1)
    assert result.p99_ms() is None
    assert result.on_time_share() == 1
    for number in range(100):
        result.add(row(number))
    result.add(row(5_000, False, "expired"))
    assert (result.p50_ms(), result.p99_ms()) == (50, 99)


def test_results_come_back_from_a_file(tmp_path):
    results = experiment(requests=40).run([EDF, FCFS], 1)
    path = tmp_path / "results.json"
    write_results(results, path)
    back = read_results(path)
    assert back == results
    assert results_json(back) == path.read_text()
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="not the results"):
        read_results(tmp_path / "other.json")


def test_a_row_has_what_is_asked_for():
    (result,) = experiment(requests=60).run([EDF], 1)
    (data,) = summary([result])
    assert set(data) >= {
        "scenario", "policy", "seed", "on_time_share", "bound_share", "p99_ms"
    }  # fmt: skip


def streams_on_one(
    fleet: dict[str, object], streams: list[dict[str, object]], seconds: int, **more: object
) -> Experiment:
    """Streams on one device that takes 20 ms for `detect` and 2 for `classify`."""
    models = [
        {"name": "detect", "base_ms": 20, "batches": [1]},
        {"name": "classify", "base_ms": 2, "batches": [1]},
    ]
    data = {"models": models, "boxes": [{"devices": [{"id": "cpu:0", **fleet}]}], **more}
    work = parse_workload({"streams": streams, "seconds": seconds})
    return Experiment("streams", WorkloadSource(work), parse_fleet(data, None, "one", Path()))


def test_a_load_is_one_of_what_the_fleet_could_do_of_that_stream_alone() -> None:
    """Beside a stream with a rate of its own, in whatever unit the two are."""
    by_load: dict[str, object] = {
        "process": "constant",
        "load": 0.5,
        "mix": [{"model": "classify", "deadline_ms": 200}],
    }
    for rate_per_s in (1, 300):
        mix = [{"model": "detect", "deadline_ms": 200}]
        beside: dict[str, object] = {"process": "constant", "rate_per_s": rate_per_s, "mix": mix}
        came = [a.kind.model for a in streams_on_one({}, [by_load, beside], 10).arrivals(1)]
        assert came.count("classify") == pytest.approx(2_500, rel=0.01)


def test_calibration_forgets_what_the_scheduler_forgets() -> None:
    """A device that takes twice as long as measured, asked so seldom that nobody learns it."""
    mix = [{"model": "detect", "deadline_ms": 1_000}]
    seldom: dict[str, object] = {"process": "constant", "rate_per_s": 0.3, "mix": mix}
    experiment = streams_on_one({"bias": 2}, [seldom], 300)
    result = experiment.simulate(PolicyChoice.parse("edf"), 1)
    assert {kept for _, kept, _ in result.calibration} == {0.0}


def test_calibration_begins_again_with_a_target_that_comes_back() -> None:
    """As the scheduler does, which has learned by then that it takes twice as long as measured."""
    mix = [{"model": "detect", "deadline_ms": 1_000}]
    often: dict[str, object] = {"process": "constant", "rate_per_s": 5, "mix": mix}
    down_and_up = [
        {"at_s": at_s, "target": "cpu:0", "event": event}
        for at_s, event in ((30.1, "down"), (30.15, "up"))
    ]

    def broken(**more: object) -> int:
        result = streams_on_one({"bias": 2}, [often], 60, **more).simulate(EDF, 1)
        ((_, kept, count),) = [point for point in result.calibration if point[0] == 0.99]
        return round((1 - kept) * count)

    assert broken() > 0
    assert broken(script=down_and_up) >= 2 * broken()

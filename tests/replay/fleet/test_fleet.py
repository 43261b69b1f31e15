"""Fleets: what the scheduler is told of them, and what is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies import make_policy
from replay.fleet.capacity import Kind, capacity_per_s
from replay.fleet.file import LinkFile, parse_fleet
from replay.fleet.model import Device, Fleet, FleetError, Truth, quantile_samples
from replay.fleet.sources import fleet_of_models, load_fleet, table_fleet
from replay.fleet.world import RESEND_NS, Course, Link, Tempo, without_stalls
from replay.links import LOST, Delay, LinkTrace
from replay.readers import TraceError
from replay.simulator import Arrival, Ending, Simulator
from replay.sources import mix_of
from replay.workloads import parse_workload
from scheduler.config.problems import ConfigError, read_yaml
from scheduler.core.commands import Dispatch
from scheduler.core.events import TargetDown, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import step_of
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import Run, TargetState
from scheduler.daemon.status import about

MS, S = 1_000_000, 1_000_000_000
M = RequestClass("m")

ONE = """
models: [{name: m, base_ms: 10, jitter: 0, batches: [1]}]
boxes: [{devices: [{id: "cpu:0", slots: 1}]}]
"""


def fleet(text: str = ONE, extra: str = "") -> Fleet:
    data, node = read_yaml(text + extra, "fleet.yaml")
    return parse_fleet(data, node, "fleet.yaml", Path())


def play(
    made: Fleet, arrivals: list[Arrival], policy: str = "edf", *, at_once: bool = False
) -> list[Ending]:
    simulator = Simulator(
        make_policy(policy),
        made.targets(),
        made.service_time(1),
        world=made.world(),
        at_once=at_once,
    )
    for at_ns, event in made.events():
        simulator.at(at_ns, event)
    endings = list(simulator.run(arrivals))
    simulator.scheduler.validate()
    return sorted(endings, key=lambda ending: ending.finish.request_id)


def every(period_ms: int, count: int, budget_ms: int = 500) -> list[Arrival]:
    return [Arrival(i * period_ms * MS, M, budget_ms * MS) for i in range(count)]


# -- what is told


def test_a_file_becomes_targets():
    made = fleet(
        """
models:
  - {name: m, variant: big, base_ms: 4, per_item_ms: 2, jitter: 0.1, accuracy: 0.9}
  - {name: m, variant: small, latency: [{batch: 1, p50_ms: 2, p90_ms: 3}, {batch: 4, p50_ms: 5}]}
boxes:
  - devices: [{id: "cpu:0"}, {id: "gpu:0", time_scale: 0.5, cost_per_s: 2}]
  - name: far
    link: {rtt_ms: 10, mbps: 8}
    devices: [{id: pool, width: 3}]
"""
    )
    cpu, gpu, pool = made.targets()
    assert [t.id for t in (cpu, gpu, pool)] == ["cpu:0", "gpu:0", "far/pool"]
    big, small = cpu.offers
    assert (big.rank, small.rank, big.accuracy) == (0, 1, 0.9)
    assert sorted(small.latency_ns) == [1, 4]
    assert gpu.offers[1].latency_ns[4] == (2_500_000,)
    assert (gpu.cost_per_s, gpu.remote, gpu.slots) == (2, False, 2)
    assert (pool.remote, pool.width, pool.slots) == (True, 3, 4)
    assert pool.transfer_ns == (10 * MS, 1000.0)
    assert made.base_ns() == {"m": gpu.offers[1].latency_ns[1][16]}


def test_energy_is_told_by_batch_or_by_power():
    (cpu,) = fleet(
        """
models:
  - {name: m, latency: [{batch: 1, p50_ms: 2, energy_uj: 700}, {batch: 4, p50_ms: 5}]}
boxes: [{devices: [{id: "cpu:0", power_w: 20}]}]
energy: {cost_per_kwh: 0.3}
"""
    ).targets()
    assert cpu.offers[0].energy_uj == {1: 700, 4: 100_000}
    assert cpu.cost_per_kwh == 0.3


def test_quantiles_come_back_out_of_the_samples():
    samples = quantile_samples(10 * MS, 15 * MS)
    assert samples[len(samples) // 2] == pytest.approx(10 * MS, rel=0.02)
    assert samples[int(0.9 * len(samples))] == pytest.approx(15 * MS, rel=0.04)
    assert quantile_samples(10 * MS, 10 * MS) == (10 * MS,)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("boxs: []", 1, "did you mean 'boxes'?"),
        (ONE.replace("base_ms", "base_mss"), 2, "did you mean 'base_ms'?"),
        (ONE.replace("base_ms: 10, ", ""), 2, "should have either latency or base_ms"),
        (ONE.replace("batches: [1]", "batches: [2]"), 2, "1 among them"),
        (ONE + "script: [{at_s: 1, target: 'cpu:0', event: stal, for_s: 1}]", 4, "'stall'"),
        (ONE + "script: [{at_s: 1, target: 'cpu:0', event: stall}]", 4, "should have for_s"),
        (ONE + "script: [{at_s: 1, target: 'cpu:0', event: slow}]", 4, "should have a factor"),
        (ONE + "script: [{at_s: 1, target: 'cpu:0', event: up, for_s: 1}]", 4, "have no for_s"),
        (ONE + "sigma: -1", 4, "greater than or equal to 0"),
        (ONE + "bias: '1'", 4, "valid number; got '1'"),
        (ONE.replace("base_ms: 10", "base_ms: true"), 2, "valid number; got true"),
        (ONE.replace("base_ms: 10", "base_ms: 1e300"), 2, "less than or equal to 1000000000"),
        (ONE.replace("batches: [1]", "batches: [true]"), 2, "valid integer; got true"),
        (ONE.replace("slots: 1", "slots: '1'"), 3, "valid integer; got '1'"),
        ("boxes: [{devices: [{id: a}]}]", 1, "'a' has no models"),
        (ONE.replace("jitter: 0", "jitter: .inf"), 2, "finite number; got inf"),
        (ONE.replace("models: [", "models: [{name: m, base_ms: 5}, "), 2, "of model 'm' once"),
        (
            ONE.replace("id:", "time_scale: 2, models: [{name: m, base_ms: 5}], id:"),
            3,
            "time_scale is for the fleet's models",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(text, line, said):
    with pytest.raises(ConfigError) as caught:
        fleet(text)
    message = str(caught.value)
    assert said in message
    assert f"fleet.yaml:{line}:" in message or "has no models" in message


def test_of_a_list_with_a_mistake_the_mistake_alone_is_told():
    with pytest.raises(ConfigError) as caught:
        fleet(ONE.replace("id:", "width: 0, id:"))
    (problem,) = caught.value.problems
    assert problem.place == "boxes[0].devices[0].width"
    with pytest.raises(ConfigError, match=r"yaml:1: boxes: should have at least 1 item; got \[\]"):
        fleet("boxes: []")


def test_a_script_for_a_target_that_is_not_there_names_the_nearest():
    with pytest.raises(FleetError, match=r"did you mean 'cpu:0'\?"):
        fleet(extra="script: [{at_s: 1, target: 'cpu:1', event: up}]")


def test_a_model_that_runs_nowhere_is_named_with_the_nearest():
    made = fleet(ONE.replace("name: m", "name: digits"))
    with pytest.raises(FleetError, match=r"'digit' runs nowhere .* did you mean 'digits'\?"):
        made.check([RequestClass("digit")])
    with pytest.raises(FleetError, match=r"variant 'fp32' of model 'digits'"):
        made.check([RequestClass("digits", "fp32")])


def test_a_table_becomes_a_target_per_accelerator(tmp_path):
    path = tmp_path / "PROFILES.CSV"
    path.write_text(
        "Model,Accelerator,Batch,p50_ms,p90_ms,note\n"
        "m,T4,1,4.0,5.0,x\nm,T4,8,16,20,x\nm,A10,1,2,2.5,x\nn,A10,1,1,1,x\n"
    )
    made = load_fleet(path)
    assert [t.id for t in made.targets()] == ["T4", "A10"]
    assert made.models() == ["m", "n"]
    assert made.base_ns()["n"] == MS


@pytest.mark.parametrize(("form", "took_ns"), [("mahimahi", MS), ("mbps", 12 * MS)])
def test_of_two_recordings_of_a_link_the_capacity_has_the_format(tmp_path, form, took_ns):
    """And only what has no times of its own has the interval."""
    reply = "64 bytes from 192.0.2.1: icmp_seq={} ttl=64 time={} ms\n"
    (tmp_path / "ping.txt").write_text(reply.format(1, 14) + reply.format(2, 20))
    (tmp_path / "numbers").write_text("1\n2\n3\n")
    both = {"trace": "ping.txt", "capacity": "numbers", "format": form, "interval_s": 0.5}
    link = LinkFile.model_validate(both).link(tmp_path)
    assert link.trace is not None
    assert [link.trace.rtt_ns(at_ns) for at_ns in (0, 499 * MS, 500 * MS)] == [14e6, 14e6, 20e6]
    assert link.trace.transfer_ns(0, 1500) == took_ns


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("model,batch,p50,p90\n", "no column accelerator"),
        ("\n", "the file is empty; expected a table of model, accelerator, batch, 50th and"),
        ("model,accelerator,batch,p50,p90\nm,T4,1,5\n", ":2: 4 columns"),
        ("model,accelerator,batch,p50,p90\nm,T4,1,5,4\n", ":2: 1, 5 and 4 ms"),
        ("model,accelerator,batch,p50,p90\nm,T4,one,5,6\n", ":2: the batch size is 'one'"),
        ("model,accelerator,batch,p50,p90\n", "no profile"),
        ("model;accelerator;batch;p50;p90\nm;T4;1;5;6\n", ":1: one column for two"),
        ("model,accelerator,batch,p50,p90\nm,T4,1,5,6\nm,,2,5,6\n", ":3: no name in 'm,,2"),
        (
            "model,precision,accelerator,batch,p50,p90\nm,fp32,T4,1,5,6\nm,int8,T4,1,2,3\n",
            ":3: 'm' on 'T4' with batch 1 for the second time",
        ),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path, rows, said):
    path = tmp_path / "profiles.csv"
    path.write_text(rows)
    with pytest.raises(TraceError, match=said):
        table_fleet(path)


@pytest.mark.parametrize(
    ("name", "unit_ns"),
    [
        ("p{}", MS),
        ("Latency {}th percentile (ms)", MS),
        ("p{}_us", 1000),
        ("p{} [us]", 1000),
        ("p{}_µs", 1000),
        ("p{}_us_warm", 1000),
        ("latency_ns_p{}", 1),
        ("p{}_s", 1000 * MS),
        ("p{} (sec)", 1000 * MS),
        ("p{}_seconds", 1000 * MS),
        ("p{}_min", 60_000 * MS),
        ("p{} (microseconds)", 1000),
    ],
)
def test_the_name_of_a_column_tells_its_unit(tmp_path, name, unit_ns):
    path = tmp_path / "profiles.csv"
    path.write_text(
        f"model,accelerator,batch,{name.format(50)},{name.format(90)}\nm,T4,1,5000,5000\n"
    )
    (target,) = table_fleet(path).targets()
    assert set(target.offers[0].latency_ns[1]) == {5000 * unit_ns}


def test_what_is_generated_takes_as_long_as_was_measured():
    offer = Offer("m", "v", "r", {1: (5 * MS,)}, item_shapes=((100,),))
    truth = Truth(sizes={("m", "v"): [(step_of(100), 1.0), (step_of(1_000), 8.0)]})
    takes_ns = Fleet("f", (Device(TargetSpec("t", (offer,)), None, truth),)).service_time(1)
    run = Dispatch(1, "t", "m", "v", (1,), 0, "")
    assert takes_ns(run, RequestClass("m")) == 5 * MS
    assert takes_ns(run, RequestClass("m", shapes=((1_000,),))) == 40 * MS
    # What is smaller than all that was measured is not faster, or no bound would hold.
    assert takes_ns(run, RequestClass("m", shapes=((10,),))) == 5 * MS


def test_an_idle_device_takes_as_long_to_begin_as_is_said():
    """One that is busy has its next batch by then, if that is sent ahead."""
    at_once = [Arrival(0, M, 500 * MS)] * 3
    assert [e.at_ns for e in play(fleet(), at_once)] == [10 * MS, 20 * MS, 30 * MS]
    slow = fleet(ONE.replace("slots: 1", "slots: 1, handover_ms: 2"))
    assert slow.targets()[0].lead_ns == 2 * MS
    assert [e.at_ns for e in play(slow, at_once)] == [12 * MS, 24 * MS, 36 * MS]
    ahead = fleet(ONE.replace("slots: 1", "slots: 2, handover_ms: 2"))
    assert [e.at_ns for e in play(ahead, at_once)] == [12 * MS, 22 * MS, 32 * MS]
    late = fleet(ONE.replace("slots: 1", "slots: 2, handover_ms: 2, lead_ms: 0"))
    assert late.targets()[0].lead_ns == 0


def test_what_a_box_says_of_its_models_becomes_a_fleet():
    latency = {"1": {"p50": 2.0, "p95": 3.0}, "4": {"p50": 5.0, "p95": 5.0}}
    place = {
        "target": "cpu:0",
        "runtime": "openvino",
        "accuracy": 0.9,
        "latency_ms": latency,
        "energy_uj": {"4": 900},
    }
    said = {"models": [{"name": "m", "variants": [{"name": "int8", "targets": [place]}]}]}
    told = {"id": "cpu:0", "transfer_ns": [0, 0.0], "lead_ns": MS, "handover_ns": 200_000}
    status: Any = {"targets": [told]}
    (device,) = fleet_of_models(json.loads(json.dumps(said)), status).devices
    assert device.truth.handover_ns == 200_000
    target = device.spec
    assert target == TargetSpec("cpu:0", target.offers, lead_ns=MS)
    assert target.offers[0].energy_uj == {4: 900}
    (offer,) = target.offers
    assert (offer.runtime, offer.variant, offer.accuracy) == ("openvino", "int8", 0.9)
    assert sorted(offer.latency_ns) == [1, 4]
    with pytest.raises(FleetError, match="measured nothing yet"):
        fleet_of_models({"models": []}, status)
    far = {"transfer_ns": [3 * MS, 0.5], "lead_ns": 4 * MS, "costs": {"cost_per_kwh": 0.3}}
    status["targets"][0] |= far
    (device,) = fleet_of_models(said, status).devices
    assert (device.spec.remote, device.spec.transfer_ns) == (True, (3 * MS, 0.5))
    assert device.spec.cost_per_kwh == 0.3
    assert (device.spec.lead_ns, device.truth.handover_ns) == (4 * MS, 0)
    assert device.link == Link(3 * MS, 0.5)


def test_what_a_box_has_learned_of_sizes_is_true_of_its_fleet():
    measured = Offer("m", "v", "r", {1: (5 * MS,)}, item_shapes=((100,),))
    target = TargetState(TargetSpec("cpu:0", (measured,)))
    target.add_offers([measured])
    long = RequestClass("m", shapes=((1_000,),))
    for now_ns in range(0, 10**9, 10**8):
        request = Request(1, long, 10**10)
        run = Run(1, "cpu:0", measured, (1,), {1}, now_ns, 0, requests=(request,))
        target.last_done_ns = now_ns
        target.observe(run, now_ns + 40 * MS)
    status = {"targets": [{"id": "cpu:0", **about(target, 10**9)}]}
    place = {"target": "cpu:0", "runtime": "r", "latency_ms": {"1": {"p50": 5.0, "p95": 5.0}}}
    said = {"models": [{"name": "m", "variants": [{"name": "v", "targets": [place]}]}]}
    made = fleet_of_models(said, json.loads(json.dumps(status)))
    ((offer,),) = (spec.offers for spec in made.targets())
    assert offer.item_shapes == measured.item_shapes
    takes_ns = made.service_time(1)
    run_of_one = Dispatch(1, "cpu:0", "m", "v", (1,), 0, "")
    assert takes_ns(run_of_one, RequestClass("m")) == pytest.approx(5 * MS, rel=0.01)
    assert takes_ns(run_of_one, long) == pytest.approx(40 * MS, rel=0.05)


# -- how much it can do


def test_capacity_adds_up_over_targets_and_batches():
    text = """
models: [{name: m, base_ms: 5, per_item_ms: 5, jitter: 0, batches: [1, 2, 4]}]
boxes: [{devices: [{id: a}, {id: b, time_scale: 0.5}]}]
"""
    made = fleet(text)
    assert capacity_per_s(made, {M: Kind(1.0)}) == pytest.approx(3 * 4 / 0.025)
    # Two batches have to fit into the deadline: 30 ms do for a pair on one and four on the other.
    tight = capacity_per_s(made, {M: Kind(1.0, 30 * MS)})
    assert tight == pytest.approx(2 / 0.015 + 4 / 0.0125)


def test_capacity_of_a_mix_is_the_best_division_of_labour():
    text = """
boxes:
  - devices:
      - {id: a, models: [{name: m, base_ms: 10, jitter: 0, batches: [1]}]}
      - id: b
        models:
          - {name: m, base_ms: 10, jitter: 0, batches: [1]}
          - {name: n, base_ms: 10, jitter: 0, batches: [1]}
"""
    capacity = capacity_per_s(fleet(text), {M: Kind(1.0), RequestClass("n"): Kind(3.0)})
    assert capacity == pytest.approx(100 / 0.75)


def test_the_capacity_for_cameras_is_that_of_the_kinds_they_send():
    made = fleet(
        "models: [{name: a, base_ms: 40}, {name: b, base_ms: 4}]\nboxes: [{devices: [{id: c}]}]\n"
    )
    mix = [{"model": model, "deadline_ms": 500} for model in "ab"]
    data = {"process": "cameras", "cameras": 3, "load": 1, "seconds": 1, "mix": mix}
    kinds = mix_of(parse_workload(data), made)
    assert [kind.share for kind in kinds.values()] == pytest.approx([1 / 3, 2 / 3])


def test_capacity_ends_where_a_link_is_full():
    """Both devices of the other box share what one link carries; nothing travels to this box."""
    text = """
models: [{name: m, base_ms: 10, jitter: 0, batches: [1]}]
boxes:
  - devices: [{id: a}]
  - {name: far, link: {rtt_ms: 20, mbps: 80}, devices: [{id: a}, {id: b}]}
"""
    made = fleet(text)
    assert capacity_per_s(made, {M: Kind(1.0)}) == pytest.approx(300)
    assert capacity_per_s(made, {M: Kind(1.0, size_bytes=10_000)}) == pytest.approx(300)
    assert capacity_per_s(made, {M: Kind(1.0, size_bytes=100_000)}) == pytest.approx(100 + 100)


# -- what is true


def test_a_target_that_dies_and_comes_back():
    made = fleet(
        extra="script: [{at_s: 0.1, target: 'cpu:0', event: down, for_s: 0.1},"
        " {at_s: 0.2, target: 'cpu:0', event: up}]"
    )
    (_, down), (_, up) = made.events()
    assert down == TargetDown("cpu:0", "as scripted", 100 * MS)
    assert isinstance(up, TargetUp)
    endings = play(made, every(20, 20, budget_ms=60))
    outcomes = [ending.finish.outcome for ending in endings]
    assert outcomes[:5] == [Outcome.COMPLETED] * 5
    assert Outcome.UNAVAILABLE in outcomes[5:9]
    assert outcomes[-8:] == [Outcome.COMPLETED] * 8
    conditions = made.conditions()["cpu:0"]
    assert conditions.up is not None
    assert conditions.up[0][1] == 100 * MS
    assert conditions.up[1][0] == 200 * MS


def test_a_stall_holds_up_what_runs_and_nobody_is_told():
    made = fleet(extra="script: [{at_s: 0.105, target: 'cpu:0', event: stall, for_s: 0.2}]")
    assert made.events() == []
    endings = play(made, every(50, 10))
    took = [(ending.at_ns - ending.arrival.at_ns) // MS for ending in endings]
    assert took[:4] == [10, 10, 210, 170]
    assert took[-1] == 10


def test_a_stall_of_a_link_holds_up_what_is_sent():
    text = """
models: [{name: m, base_ms: 10, jitter: 0, batches: [1]}]
boxes: [{name: far, link: {rtt_ms: 4}, devices: [{id: a}]}]
script: [{at_s: 0.1, target: far/a, event: stall, for_s: 0.1}]
"""
    first, second = play(fleet(text), [Arrival(0, M, 500 * MS), Arrival(150 * MS, M, 500 * MS)])
    assert first.at_ns == 14 * MS
    assert second.at_ns == 214 * MS


def test_drift_is_true_and_not_told():
    drifting, steady = fleet(extra="drift: [{at_s: 0.1, factor: 2}]"), fleet()
    assert drifting.targets() == steady.targets()
    endings = play(drifting, every(50, 4))
    assert [(e.at_ns - e.arrival.at_ns) // MS for e in endings] == [10, 10, 20, 20]
    assert drifting.conditions()["cpu:0"].slowdown == ((100 * MS, 2.0),)


def test_a_slow_spell_ends_and_adds_to_a_drift():
    made = fleet(
        extra="drift: [{at_s: 0.15, factor: 2}]\n"
        "script: [{at_s: 0.1, target: 'cpu:0', event: slow, factor: 3, for_s: 0.1}]"
    )
    slowdown = made.conditions()["cpu:0"].slowdown
    assert slowdown == ((100 * MS, 3.0), (150 * MS, 6.0), (200 * MS, 2.0))


def test_mispredictions_are_within_their_share_and_differ_by_seed():
    made = fleet(extra="misprediction: 0.5")
    offer = made.targets()[0].offers[0]
    factors = {made.true_times(seed)("cpu:0", offer, 1)[0] / (10 * MS) for seed in range(20)}
    assert len(factors) == 20
    assert all(0.5 <= factor <= 1.5 for factor in factors)
    assert made.targets() == fleet().targets()


def test_bias_and_noise_are_true_and_not_told():
    made = fleet(extra="bias: 1.5\nsigma: 0.3")
    offer = made.targets()[0].offers[0]
    times = sorted(made.true_times(1)("cpu:0", offer, 1))
    assert times[len(times) // 2] == pytest.approx(15 * MS, rel=0.05)
    assert times[-1] > 1.4 * times[len(times) // 2]


TWO_FAR = """
models: [{name: m, base_ms: 1, jitter: 0, batches: [1]}]
boxes:
  - {name: a, link: {rtt_ms: 20, mbps: 8}, devices: [{id: "cpu:0"}, {id: "gpu:0"}]}
  - {name: b, link: {rtt_ms: 20, mbps: 8}, devices: [{id: "cpu:0"}]}
"""


def test_the_devices_of_a_box_share_its_link():
    world = fleet(TWO_FAR).world()
    landed = [world.lands_ns(target, 10_000, 0) for target in ("a/cpu:0", "a/gpu:0", "b/cpu:0")]
    assert landed == [20 * MS, 30 * MS, 20 * MS]
    assert world.lands_ns("a/cpu:0", 1_000, 100 * MS) == 111 * MS


@pytest.mark.parametrize("policy", ["goodput", "edf", "ect", "fcfs"])
def test_a_link_carries_no_more_than_its_rate(policy: str):
    """Of 200 requests a second the link carries 100, and the scheduler knows that beforehand."""
    endings = play(
        fleet(TWO_FAR[: TWO_FAR.index("  - {name: b")]),
        [replace(each, size_bytes=10_000) for each in every(5, 400, 100)],
        policy,
    )
    in_time = sum(ending.in_time for ending in endings)
    assert 0.85 * 200 < in_time <= 210


def test_lost_messages_are_sent_again():
    trace = LinkTrace(delay=Delay([LOST, 10 * MS], RESEND_NS))
    link = Link(trace=trace)
    assert link.out_ns(RESEND_NS, 0) == 5 * MS
    assert link.out_ns(0, 0) == RESEND_NS + 5 * MS
    assert link.expected() == (10 * MS, 0.0)


def test_nothing_gets_through_while_all_probes_are_lost():
    minute = [20 * MS, *[LOST] * 60, 20 * MS]
    link = Link(trace=LinkTrace(delay=Delay(minute, S)))
    assert [link.out_ns(at_s * S, 9) for at_s in (0, 1, 31)] == [
        10 * MS,
        60 * S + 10 * MS,
        30 * S + 10 * MS,
    ]
    assert link.out_ns(61 * S - MS, 9) == RESEND_NS + 10 * MS
    in_step = Link(trace=LinkTrace(delay=Delay([LOST, 20 * MS], RESEND_NS // 2)))
    assert in_step.out_ns(0, 9) % RESEND_NS == RESEND_NS // 2 + 10 * MS


def test_a_return_that_is_announced_and_never_comes_is_noted():
    down = 'script: [{at_s: 2, target: "cpu:0", event: down, for_s: 5}'
    (note,) = fleet(extra=down + "]").notes
    assert note.startswith("cpu:0 is down from 2 s on: for_s announces its return")
    assert not fleet(extra=down + ', {at_s: 7, target: "cpu:0", event: up}]').notes


def test_work_that_a_stall_interrupts_goes_on_after_it():
    course = Course(stalls=((100, 200), (300, 400)))
    assert course.ends_ns(50, 40) == 90
    assert course.ends_ns(50, 60) == 210
    assert course.ends_ns(150, 60) == 260
    assert course.ends_ns(50, 200) == 450


def test_what_the_bounds_are_told_of_a_stall_is_in_their_favour():
    made = fleet(extra="script: [{at_s: 1, target: 'cpu:0', event: stall, for_s: 1}]")
    spans = made.conditions()["cpu:0"].up
    assert spans is not None
    (_, until_ns), (from_ns, _) = spans
    assert S + 10 * MS <= until_ns < S + 11 * MS
    assert from_ns == 2 * S


# -- times that are known


def with_truth(truth: Truth) -> Fleet:
    made = fleet()
    return replace(made, devices=tuple(replace(d, truth=truth) for d in made.devices))


RUNG = ("m", "default", 1)
TIMES = {RUNG: tuple(i * MS for i in range(1, 9))}


def took_ns(made: Fleet, count: int) -> list[int]:
    """What single requests take that come every 100 ms."""
    return [ending.at_ns - ending.arrival.at_ns for ending in play(made, every(100, count))]


def test_known_times_are_drawn_with_bias_and_noise():
    drawn = took_ns(with_truth(Truth(times=TIMES)), 200)
    assert set(drawn) == set(TIMES[RUNG])
    biased = took_ns(with_truth(Truth(times=TIMES, bias=2.0)), 200)
    assert biased == [2 * ns for ns in drawn]
    noisy = took_ns(with_truth(Truth(times=TIMES, sigma=0.01)), 32)
    assert len(set(noisy)) > 8


def test_a_known_tempo_stands_in_place_of_chance():
    steps = ((0, 1.0), (200 * MS, 2.0), (500 * MS, 0.5))
    usual_ns = 4_500_000
    here = Tempo(steps, {RUNG: usual_ns}, 600 * MS, 0)
    usual = [1, 1, 2, 2, 2, 0.5]
    assert took_ns(with_truth(Truth(times=TIMES, tempo=here)), 12) == [
        factor * usual_ns for factor in 2 * usual
    ]
    later = replace(here, begin_ns=-100 * MS)
    assert took_ns(with_truth(Truth(times=TIMES, tempo=later, bias=2.0)), 6) == [
        factor * 2 * usual_ns for factor in (usual[-1], *usual[:-1])
    ]


def test_a_batch_shows_the_pace_of_so_much_work_as_it_was():
    """One of 1 ms was held up for 19 ms; the others went as usual."""
    steps = ((0, 1.0), (20 * MS, 20.0), (40 * MS, 1.0), (60 * MS, None))
    held_up = Tempo(steps, {}, 80 * MS, 0, (1.0,), told_ns=(MS, MS, MS, 0))
    assert held_up.took_ns(20 * MS, MS) == 20 * MS
    assert held_up.took_ns(20 * MS, MS // 2) == 10 * MS
    assert held_up.took_ns(20 * MS, 10 * MS) == (20 + 9) * MS
    assert held_up.took_ns(100 * MS, 10 * MS) == (20 + 9) * MS  # a cycle later
    assert held_up.took_ns(15 * MS, 10 * MS) == (5 + 20 + 4) * MS
    assert held_up.took_ns(50 * MS, 100 * MS) == 100 * MS


def test_a_tempo_begins_by_chance_where_it_is_of_no_request_that_is_played():
    here = Tempo(((0, 1.0), (200 * MS, 2.0)), {}, 400 * MS, 0)
    anywhere = replace(here, begin_ns=None)
    assert here.placed(1) == here
    assert anywhere.placed(1) != here != here.placed(2) == anywhere.placed(2) != here.placed(3)
    factors = [anywhere.placed(2).factor(at_ms * MS) for at_ms in range(0, 800, 10)]
    assert factors[:40] == factors[40:]
    assert factors.count(2.0) == 40


def test_the_bounds_reckon_with_the_fastest_moment():
    tempo = Tempo(((0, 2.0), (200 * MS, 0.5), (300 * MS, 1.0)), {RUNG: 4 * MS}, S)
    made = with_truth(Truth(times=TIMES, tempo=tempo, bias=3.0))
    (device,) = made.devices
    assert made.true_times(1)(device.spec.id, device.spec.offers[0], 1) == (6 * MS,)


def test_a_drift_comes_on_top_of_a_tempo():
    truth = Truth(
        times=TIMES, tempo=Tempo(((0, 2.0),), {RUNG: 4_500_000}, S), drift=((100 * MS, 3.0),)
    )
    assert took_ns(with_truth(truth), 2) == [9 * MS, 27 * MS]


def test_submissions_take_time_from_what_runs_where_the_processor_is_shared():
    fleet = with_truth(Truth(submit_ns=MS))
    arrivals = [Arrival(at_ms * MS, M, 500 * MS) for at_ms in (0, 4, 6)]
    alone, second, third = play(fleet, arrivals)
    assert alone.at_ns == 12 * MS
    assert (second.at_ns, third.at_ns) == (22 * MS, 32 * MS)

    together = [Arrival(at_ms * MS, M, 500 * MS) for at_ms in (0, 4, 4, 4)]
    assert play(fleet, together, at_once=True)[0].at_ns == 11 * MS


def test_before_a_device_grows_faster_its_batches_are_as_long_as_ever() -> None:
    """The bound reckons what a stall interrupts before it: by the longest batch until then."""
    stalls = ((10_000 * MS, 13_000 * MS),)
    faster = Course(slow=((100_000 * MS, 0.1),), stalls=stalls)
    up = [(0, 200_000 * MS)]
    assert without_stalls(up, faster, 1_000 * MS) == without_stalls(
        up, Course(stalls=stalls), 1_000 * MS
    )


def test_a_column_is_chosen_by_its_plain_name_or_not_at_all(tmp_path):
    path = tmp_path / "profiles.csv"
    named = "model,model_version,accelerator,batch,ttft_p50_ms,ttft_p90_ms,p50_ms,p90_ms"
    path.write_text(f"{named}\ndetect,3,cpu,1,4,5,40,44\n")
    (spec,) = load_fleet(path).targets()
    (offer,) = spec.offers
    assert offer.model == "detect"
    assert 39 * MS < sorted(offer.latency_ns[1])[16] < 41 * MS
    path.write_text("model,accelerator,batch,p50_ms,median_us,p90_ms\ndetect,cpu,1,4,4000,5\n")
    with pytest.raises(TraceError, match="2 columns for p50: p50_ms, median_us; expected one"):
        load_fleet(path)

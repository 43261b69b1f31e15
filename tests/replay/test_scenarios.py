"""The standard scenarios: all are read, all can be played, together they cover what they should."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from replay.experiment import PolicyChoice
from replay.fleet.model import FleetError
from replay.scenarios import FOLDER, ScenarioError, load_scenario, standard_scenarios
from replay.sources import WorkloadSource
from replay.workloads import Fixed, Mix
from scheduler.config.problems import ConfigError
from scheduler.core.outcomes import Outcome

SCENARIOS = {scenario.name: scenario for scenario in standard_scenarios()}
BY_RATE = {"bursts-beside-long"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_can_be_played(name):
    scenario = SCENARIOS[name]
    result = scenario.experiment(requests=150).simulate(PolicyChoice.parse("edf"), 1)
    assert result.total().requests == 150
    assert result.load is not None or name in BY_RATE
    assert result.outcomes()[Outcome.COMPLETED.value] > 0
    assert (FOLDER / f"{name}.yaml").read_text().startswith("# ")


def test_they_cover_what_they_should():
    loads = {scenario.experiment().load for scenario in SCENARIOS.values()}
    assert {0.5, 2.0} <= loads
    targets = {len(scenario.fleet.devices) for scenario in SCENARIOS.values()}
    assert {2, 8} <= targets
    incidents = Counter(i.what for s in SCENARIOS.values() for i in s.fleet.script)
    assert {"down", "up", "stall"} <= set(incidents)
    truths = [device.truth for s in SCENARIOS.values() for device in s.fleet.devices]
    assert max(truth.misprediction for truth in truths) == 0.5
    assert any(step[1] == 2 for truth in truths for step in truth.drift)
    base_ns = [scenario.fleet.base_ns().values() for scenario in SCENARIOS.values()]
    assert max(max(each) / min(each) for each in base_ns) > 100
    variants = [
        Counter(o.model for o in d.spec.offers) for s in SCENARIOS.values() for d in s.fleet.devices
    ]
    assert any(count > 1 for each in variants for count in each.values())
    assert 15 <= len(SCENARIOS) <= 32


@pytest.mark.parametrize("name", ["device-dies", "link-stalls", "drift-2x"])
def test_what_is_scripted_happens_in_the_middle_of_the_requests(name):
    experiment = SCENARIOS[name].experiment()
    *_, last = experiment.arrivals(1)
    script = experiment.fleet.script
    drift = [step for device in experiment.fleet.devices for step in device.truth.drift]
    times_ns = [incident.at_ns for incident in script] + [at_ns for at_ns, _ in drift]
    assert all(0.1 < at_ns / last.at_ns < 0.9 for at_ns in times_ns)


def test_a_pattern_that_fits_none_names_the_nearest():
    assert [s.name for s in standard_scenarios("drift-*")] == ["drift-2x"]
    with pytest.raises(ScenarioError, match="did you mean 'drift-2x'"):
        standard_scenarios("drft-2x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about: a\nfleet: {boxes: []}\nworkloads: {}", "did you mean 'workload'"),
        ("about: a\nfleet: {boxs: []}\nworkload: {}", "scenario.yaml:2: fleet.boxs: unknown key"),
        ("about: a\nfleet: none.yaml\nworkload: {}", "none.yaml: can't be read"),
        ("[]", "should be a mapping of keys to values"),
    ],
)
def test_a_mistake_is_named(tmp_path, text, said):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_scenario(path)


def test_deadlines_that_nothing_can_meet_are_said():
    scenario = SCENARIOS["load-0_5"]
    workload = scenario.experiment().source.workload  # type: ignore[attr-defined]
    stream = workload.streams[0]
    entries = [replace(entry, deadline_scale=Fixed(0.1)) for entry in stream.mix.entries]
    hopeless = replace(workload, streams=(replace(stream, mix=Mix(entries)),))
    with pytest.raises(FleetError, match=r"fleet 'line' can finish nothing.* rate_per_s"):
        WorkloadSource(hopeless).arrivals(1, scenario.fleet)


@pytest.mark.parametrize("load", [0.7, 1.1, 1.5, 1.9])
def test_a_load_is_told_as_it_was_asked_for(load: float) -> None:
    for scenario in SCENARIOS.values():
        assert scenario.experiment(requests=10, load=load).load == load

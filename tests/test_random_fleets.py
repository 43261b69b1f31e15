"""The benchmark on random fleets: what it plays, and how it adds up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import random_fleets


@pytest.fixture
def figures_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the benchmark with a command line, and returns what it writes."""

    def run(asked: str) -> dict[str, Any]:
        file = tmp_path / "figures.json"
        monkeypatch.setattr("sys.argv", ["random_fleets", *asked.split(), "--json", str(file)])
        random_fleets.main()
        figures: dict[str, Any] = json.loads(file.read_text())
        return figures

    return run


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_fleet_depends_on_its_number_alone(kind):
    numbers = [0, 1, 2, 0, 1, 2]
    *first, a, b, c = (random_fleets.described(kind, 2, number) for number in numbers)
    assert first == [a, b, c]
    assert a != b != c != a


def test_the_differences_are_those_of_the_same_fleets(figures_of, capsys):
    figures = figures_of(
        "--kind gpu --devices 2 --fleets 3 --first 5 --requests 200 --policy goodput,fcfs"
    )
    percent, beyond = figures["on_time_percent"], figures["fcfs beyond goodput"]
    gain = percent["fcfs"] - percent["goodput"]
    assert 0 < percent["fcfs"] <= 100
    assert beyond["all"]["mean"] == pytest.approx(gain)
    assert beyond["all"]["least"] <= gain <= beyond["all"]["most"]
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "fleet 5",
        "fleet 6",
        "fleet 7",
    ]


def test_clients_are_compared_also_by_what_they_get_per_second(figures_of):
    figures = figures_of("--clients 2 --fleets 2 --requests 200 --policy edf,goodput")
    assert figures["in_time_per_s"].keys() == {"edf", "goodput"}
    ratio = figures["goodput per second by edf"]
    assert 0.0 < ratio["least"] <= ratio["mean"] <= ratio["most"]


def test_a_load_is_that_of_all_fleets(figures_of):
    figures = figures_of("--kind gpu --load 8 --fleets 2 --requests 200 --policy goodput,edf")
    assert "load 8.0" in figures["edf beyond goodput"]
    assert 0 < figures["on_time_percent"]["goodput"] < 40


def test_clouds_stand_behind_the_box_at_a_price():
    alone = random_fleets.described("gpu", 1, 3)
    boxes = random_fleets.with_clouds(alone, 2, 0.5)["fleet"]["boxes"]
    assert boxes[:1] == alone["fleet"]["boxes"]
    assert [box["name"] for box in boxes[1:]] == ["cloud-0", "cloud-1"]
    assert {device["cost_per_request"] for box in boxes[1:] for device in box["devices"]} == {0.5}


def test_fleets_with_clouds_are_played(figures_of):
    figures = figures_of("--clouds 1 --price 0 --fleets 2 --requests 200 --policy goodput")
    assert 0 < figures["on_time_percent"]["goodput"] <= 100


def test_jitter_belongs_to_a_device():
    fleet = random_fleets.with_clouds(random_fleets.described("gpu", 3, 3), 1, 0.5)["fleet"]
    scenario = {"about": "Random fleet 3", "fleet": fleet, "workload": {}}
    boxes = random_fleets.with_jitter(scenario, 0.6)["fleet"]["boxes"]
    devices = [device for box in boxes for device in box["devices"]]
    spreads = [{model["jitter"] for model in device["models"]} for device in devices]
    assert all(len(spread) == 1 and spread <= {0.6 / 12, 0.3, 0.6} for spread in spreads)
    assert len(set.union(*spreads)) > 1
    scales = [device["time_scale"] for box in fleet["boxes"] for device in box["devices"]]
    takes = [device["models"][0]["per_item_ms"] for device in devices]
    assert takes == [scale * fleet["models"][0]["per_item_ms"] for scale in scales]


def test_fleets_with_jitter_are_played(figures_of):
    steady, spread = (
        figures_of(f"--kind gpu --clouds 1 {jitter} --fleets 2 --requests 300 --policy goodput")
        for jitter in ("", "--jitter 0.6")
    )
    assert steady["on_time_percent"] != spread["on_time_percent"]

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_agent import contention
from edge_agent.contention import load_slowdown, measure_slowdown, store_slowdown


class Box:
    """Devices that take `alone` each, and longer by a factor while a rival is busy."""

    def __init__(self, alone: dict[str, int], factor: dict[tuple[str, str], float]) -> None:
        self._alone, self._factor = alone, factor
        self.busy: list[str] = []

    def typical_ns(self, device: str, seconds: float) -> dict[str, int]:
        slower = 1.0
        for other in self.busy:
            slower *= self._factor.get((device, other), 1.0)
        return {"m/a": round(self._alone[device] * slower), "m/b": 10 * self._alone[device]}

    def occupy(self, device: str, seconds: float):
        self.busy.append(device)
        return lambda: self.busy.remove(device)


def test_each_device_is_measured_beside_each_other_one():
    box = Box(
        {"cpu:0": 1000, "cpu:1": 1000, "gpu:0": 200},
        {("cpu:0", "cpu:1"): 1.5, ("cpu:1", "cpu:0"): 1.4, ("gpu:0", "cpu:0"): 1.2},
    )

    found = measure_slowdown(["cpu:0", "cpu:1", "gpu:0"], box.typical_ns, box.occupy)

    # The median of a variant that is slowed and one that is not.
    assert found["cpu:0"] == {"cpu:1": 1.25, "gpu:0": 1.0}
    assert found["cpu:1"] == {"cpu:0": 1.2, "gpu:0": 1.0}
    assert found["gpu:0"] == {"cpu:0": 1.1, "cpu:1": 1.0}
    assert box.busy == []


def test_a_device_that_serves_nothing_says_nothing():
    assert measure_slowdown(["a", "b"], lambda d, s: {}, lambda d, s: lambda: None) == {}


def test_a_measurement_is_kept_for_the_same_devices(tmp_path):
    path = tmp_path / "contention.json"
    devices = {"cpu:0": "openvino 1", "gpu:0": "openvino 1"}
    measured = {"cpu:0": {"gpu:0": 1.1}, "gpu:0": {"cpu:0": 1.2}}
    store_slowdown(path, devices, measured)

    assert load_slowdown(path, devices) == measured
    assert load_slowdown(path, {**devices, "gpu:0": "openvino 2"}) is None


@pytest.mark.parametrize("measured", [{}, {"cpu:0": {"gpu:0": 1.1}}])
def test_a_device_that_served_nothing_yet_is_measured_again(tmp_path, measured):
    path = tmp_path / "contention.json"
    devices = {"cpu:0": "openvino 1", "gpu:0": "openvino 1"}
    store_slowdown(path, devices, measured)

    assert load_slowdown(path, devices) is None


class Worker:
    """Answers as an actor's handle does, through `ray.get` as it is here: the identity."""

    def __init__(self) -> None:
        self.learned: dict[str, float] = {}
        self.describe, self.typical_ns, self.occupy, self.learn_contention = (
            SimpleNamespace(remote=answer)
            for answer in (
                lambda: {"device": "openvino 1"},
                lambda seconds: {"m/a": 1000},
                lambda seconds: 1,
                self.learned.update,
            )
        )


def test_a_disk_that_is_full_keeps_nobody_from_hearing_it(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.get", lambda answer: answer)
    workers = {"cpu:0": Worker(), "gpu:0": Worker()}

    contention._tell_slowdown(workers, tmp_path / "no folder/contention.json")

    assert workers["cpu:0"].learned == {"gpu:0": 1.0}
    assert workers["gpu:0"].learned == {"cpu:0": 1.0}


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_measurement_is_made_again(tmp_path: Path, text):
    path = tmp_path / "contention.json"
    path.write_text(text)

    assert load_slowdown(path, {}) is None


def test_a_measurement_that_is_no_mapping_is_made_again(tmp_path: Path):
    path = tmp_path / "contention.json"
    path.write_text('{"devices": {"cpu:0": "x"}, "slowdown": ["cpu:0"]}')
    assert load_slowdown(path, {"cpu:0": "x"}) is None

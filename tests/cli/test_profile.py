"""`laxity profile`: what an agent would measure, without one."""

from __future__ import annotations

import json
import operator
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from edge_agent import measuring
from edge_agent.measuring import DeviceFigures
from edge_agent.state_lock import locked
from scheduler.cli.profile import _show as show
from workers.device_host import Measured
from workers.profile_store import Profile

SMALL = Path(__file__).parents[2] / "configs" / "models" / "digits" / "small.onnx"


@pytest.fixture
def profile(tmp_path, laxity):
    """Runs the command on a box of one device with one model."""
    home = tmp_path / "models" / "digits"
    home.mkdir(parents=True)
    shutil.copy(SMALL, home)
    (home / "model.yaml").write_text("variants: {small: {file: small.onnx}}\n")
    config = tmp_path / "edge.yaml"
    config.write_text(
        f"models: {tmp_path}/models\nstate_dir: {tmp_path}/state\n"
        "profile: {seconds: 0.1, max_batch: 2}\ndevices: [{id: 'cpu:0'}]\n"
    )

    def run(*args: str) -> tuple[int, str, str]:
        found: tuple[int, str, str] = laxity("profile", "--config", str(config), *args)
        return found

    return run


def figures(out: str) -> list[dict[str, Any]]:
    (device,) = json.loads(out)["devices"]
    assert device["device"] == "cpu:0"
    rows: list[dict[str, Any]] = device["measured"]
    return rows


def test_what_is_measured_is_kept_for_the_box(profile, tmp_path):
    status, out, _ = profile("--json")
    assert status == 0
    rows = figures(out)
    assert {row["runtime"] for row in rows} == {"onnxruntime", "openvino"}
    assert [row["chosen"] for row in rows].count(True) == 1
    assert all(row["latency_ms"]["1"]["p50"] > 0 for row in rows)
    assert list(tmp_path.glob("state/profiles/*.json"))
    status, out, _ = profile("--json")
    assert figures(out) == rows


def test_again_measures_anew_and_keeps_nothing(profile, tmp_path):
    status, out, _ = profile("--again")
    assert status == 0
    assert "serves" in out
    assert not (tmp_path / "state").exists()


def test_a_box_that_runs_is_left_alone(profile, tmp_path):
    (tmp_path / "state").mkdir()
    lock = locked(tmp_path / "state", "agent")
    status, out, err = profile()
    os.close(lock)
    assert (status, out) == (1, "")
    assert "another agent uses" in err


def test_a_state_folder_that_can_not_be_written_is_named(profile, tmp_path):
    (tmp_path / "state").write_text("")
    status, out, err = profile()
    assert (status, out) == (1, "")
    assert f"the state folder {tmp_path}/state can't be written" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("devices", "args", "status", "said"),
    [
        ("[{id: 'cpu:0'}]", ["--device", "gpu:7"], 2, "--device gpu:7: there are cpu:0"),
        ("[{id: 'cpu:0'}]", ["--models", "/nowhere"], 1, "laxity: model repository /nowhere"),
        ("[{id: 'cpu:0', runtimes: [tensorrt]}]", [], 1, "computes on gpu, not on a cpu"),
        ("3", [], 2, "devices"),
    ],
)
def test_mistakes_are_named(profile, tmp_path, devices, args, status, said):
    config = tmp_path / "edge.yaml"
    config.write_text(config.read_text().replace("[{id: 'cpu:0'}]", devices))
    found, out, err = profile(*args)
    assert (found, out) == (status, "")
    assert said in " ".join(err.split())


def test_no_model_that_could_be_served_is_status_1(profile, tmp_path):
    (tmp_path / "models" / "digits" / "small.onnx").write_text("torn")
    status, out, err = profile("--json")
    assert (status, figures(out)) == (1, [])
    assert f"none of the models in {tmp_path}/models could be served" in err
    shutil.rmtree(tmp_path / "models" / "digits")
    status, _, err = profile()
    assert (status, err) == (1, f"laxity: there is no model in {tmp_path}/models\n")


def test_a_device_whose_process_ends_is_said(profile, monkeypatch):
    monkeypatch.setattr(measuring, "_work", operator.is_)  # says nothing and returns
    status, out, err = profile()
    assert (status, out) == (1, "")
    assert "cpu:0: its process ended with status 0" in err


def test_people_see_the_energy_where_it_is_metered(capsys):
    from rich.console import Console

    fast = Profile({1: (10**6, 2 * 10**6), 4: (3 * 10**6,)}, load_ns=10**7, energy_uj={1: 5000})
    slow = Profile({1: (3 * 10**9,)})
    wrong = Profile({}, rejected="'y' is off by 2, allowed is 1")
    rows = [Measured("m", "v", "a", fast, True), Measured("m", "v", "b", wrong, False)]
    rows += [Measured("m", "w", "a", slow, True)]
    show(Console(width=100), [DeviceFigures("cpu:0", "cpu:0 (cpu)", tuple(rows), ("m/v, b: off",))])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["v", "a", "serves", "10", "1", "1.5", "1.95", "667", "5"] in lines
    assert ["4", "3", "3", "1,333"] in lines
    assert ["v", "b", "rejected", "0"] in lines
    assert ["w", "a", "serves", "0", "1", "3,000", "3,000", "0.333"] in lines
    assert ["m/v,", "b:", "off"] in lines

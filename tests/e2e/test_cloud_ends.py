"""`laxity cloud up` when it is ended early, or when the Ray under it dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edge_agent.cloud.record import read_record
from edge_agent.state_lock import is_held
from tests.e2e.running_agent import ModelsNamed, marked, name
from tests.e2e.running_cloud import RunningCloud
from tests.waiting import eventually

START_S = 180
"""A busy machine takes minutes to start Ray Serve and a replica."""


@pytest.fixture
def cloud(models_named: ModelsNamed, tmp_path: Path) -> Iterator[RunningCloud]:
    cloud = RunningCloud(tmp_path, models_named("relu"), {})
    yield cloud
    cloud.close()


@pytest.fixture
def up(cloud: RunningCloud) -> Iterator[subprocess.Popen[str]]:
    """`laxity cloud up`, as it starts Ray."""
    with subprocess.Popen(
        [sys.executable, "-m", "scheduler.cli", "cloud", "up", "--config", str(cloud.config)],
        env=marked(cloud.run),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        try:
            eventually(lambda: is_held(cloud.state_dir, "cloud"))
            yield up
        finally:
            cloud.close()


def test_down_ends_one_that_is_still_starting(
    cloud: RunningCloud, up: subprocess.Popen[str]
) -> None:
    for command, told in (("status", "is starting"), ("up", "another `laxity cloud up`")):
        done = cloud.laxity(command)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    done = cloud.laxity("down", "--json")
    assert json.loads(done.stdout) == {"stopped": "laxity"}, done.stderr
    up.communicate()
    assert cloud.processes() == []


def test_up_ends_with_the_ray_under_it_and_leaves_nothing(
    cloud: RunningCloud, up: subprocess.Popen[str]
) -> None:
    eventually(lambda: (record := read_record(cloud.state_dir)) and record.ready, START_S)
    (raylet,) = [process for process in cloud.processes() if name(process) == "raylet"]
    raylet.kill()
    _, said = up.communicate(timeout=60)
    assert up.returncode == 1
    assert "Ray's raylet has died" in said
    _, left = psutil.wait_procs(cloud.processes(), timeout=15)
    assert left == []
    assert cloud.laxity("down").stdout == "nothing is up\n"

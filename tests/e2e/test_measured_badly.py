"""A box whose models were measured in a bad moment finds out by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scheduler import Client, DeadlineExpired, DeadlineInfeasible
from tests.e2e.running_agent import RunningAgent
from tests.waiting import eventually

X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
DEVICES: list[dict[str, Any]] = [{"id": "cpu:0"}]


def test_a_box_that_refuses_all_for_a_wrong_profile_serves_after_seconds(
    models: Path, tmp_path: Path
) -> None:
    own = tmp_path / "models"
    shutil.copytree(models / "relu", own / "relu")
    config = tmp_path / "profile.yaml"
    settings = {"models": str(own), "state_dir": str(tmp_path / "state"), "devices": DEVICES}
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "scheduler.cli", "profile", "--config", str(config)]
    subprocess.run(command, check=True, capture_output=True)
    for path in (tmp_path / "state/profiles").glob("*.json"):
        document = json.loads(path.read_text())
        for entry in document["profiles"].values():
            for samples in entry["latency_ns"].values():
                samples[:] = [ns + 10**9 for ns in samples]
        path.write_text(json.dumps(document))

    agent = RunningAgent(tmp_path, own, devices=DEVICES)
    refused = 0
    with Client(agent.url) as client:
        while True:
            try:
                result = client.infer("relu", X, deadline_ms=500)
                break
            except DeadlineInfeasible:
                refused += 1
            except DeadlineExpired:
                pass  # a busy machine
            time.sleep(0.02)
    # Ray passes it on in its own time, and not at the end.
    eventually(lambda: any("measuring again" in line for line in agent.lines))
    agent.end()
    assert refused > 0
    assert result.outputs["y"].tolist() == [0, 0, 2]

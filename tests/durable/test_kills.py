"""`kill -9` of the process that keeps the tasks; the long version is `benchmarks.durable_kills`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_no_acknowledged_task_is_lost_to_kills(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    sizes = ["--kills", "10", "--tasks", "300", "--busy", "4", "--life", "0.6"]
    command = [sys.executable, "-m", "benchmarks.durable_kills", *sizes, "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert (found["acknowledged"], found["completed"], found["kept"]) == (300, 300, 300)
    assert (found["lost"], found["wrong"], found["ended_twice"]) == (0, 0, 0)
    assert found["runs"] >= 300

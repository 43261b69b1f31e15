"""What an agent that can't start says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_state_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("")
    config = tmp_path / "edge.yaml"
    config.write_text(f"state_dir: {state}\n")
    agent = subprocess.run(
        [sys.executable, "-m", "edge_agent", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert agent.returncode == 1
    assert agent.stderr == (
        f"the state folder {state} can't be written: File exists; let this user write there, or "
        "set another state_dir\n"
    )

"""No library of a runtime tells its maker anything: what would, leaves an id in the home folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.runtimes import RUNTIMES

DIGITS = Path("configs/models/digits/small.onnx").resolve()
USES = {
    "onnxruntime": f"import onnxruntime; onnxruntime.InferenceSession({str(DIGITS)!r})",
    "openvino": f"import openvino; openvino.Core().compile_model({str(DIGITS)!r}, 'CPU')",
}


def left_at_home(home: Path, *command: str) -> list[Path]:
    """What a command leaves in an empty home folder."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
    # Both libraries are silent where CI runs, and it must not be that which is seen here.
    for name in ("CI", "TF_BUILD", "GITHUB_ACTIONS", "JENKINS_URL", "TRAVIS"):
        keep.pop(name, None)
    subprocess.run(command, env={**keep, "HOME": str(home)}, check=True, timeout=100)
    return sorted(home.rglob("*"))


@pytest.mark.parametrize("runtime", USES)
def test_a_worker_s_process_tells_nothing(runtime, tmp_path):
    if RUNTIMES[runtime]().missing() is not None:
        pytest.skip(f"needs {runtime}")
    script = f"import workers.runtimes; {USES[runtime]}"
    assert left_at_home(tmp_path, sys.executable, "-c", script) == []


def test_looking_for_hardware_tells_nothing(tmp_path):
    assert left_at_home(tmp_path, sys.executable, "-m", "edge_agent", "--probe") == []

"""What benchmarks change of the machine that they run on is put back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
from benchmarks.spawned_agent import preferred

group = Path("/proc/self/autogroup")
print(group.read_text().split()[-1])
with preferred(0):
    print(group.read_text().split()[-1])
try:
    with preferred(5):
        print(group.read_text().split()[-1])
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print(group.read_text().split()[-1])
"""


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel has no niceness of sessions"
)
def test_the_shell_that_a_benchmark_was_called_from_is_as_nice_as_before() -> None:
    command = [sys.executable, "-c", SCRIPT]
    said = subprocess.check_output(command, text=True, start_new_session=True).split()
    assert said == ["0", "0", "5", "0"]

"""What signals do to the commands that start something."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import os, signal, sys, threading
from edge_agent.terminal import ignore_signals, on_signals

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

last = Last()
on_signals(threading.Event(), threading.Event())
ignore_signals()
sys.exit(3)
"""


def test_a_signal_as_a_process_ends_leaves_its_exit_status_alone() -> None:
    """Python gives up its handlers first."""
    assert subprocess.run([sys.executable, "-c", ENDING], check=False).returncode == 3

"""What signals do to the commands that start something."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest
from rich.console import Console

from edge_agent import terminal

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

LOST = """
import signal
from edge_agent.terminal import exit_on_signals

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

came = exit_on_signals()
last = Last()
assert not came.is_set()
del last
print("not raised,", "but told" if came.is_set() else "nor told")
"""


def test_a_signal_that_comes_while_an_object_is_destroyed_is_told() -> None:
    """Python drops what the handler raises then."""
    command = [sys.executable, "-c", LOST]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout == "not raised, but told\n"


def test_a_signal_as_a_process_ends_leaves_its_exit_status_alone() -> None:
    """Python gives up its handlers first."""
    assert subprocess.run([sys.executable, "-c", ENDING], check=False).returncode == 3


def test_a_log_hears_now_and_then_how_far_a_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = ((0, 0), (4, 3), (6, 4), (7, 5), (20, 4), (21, 4), (26, 6))
    now_s = iter([float(at_s) for at_s, _ in moments])
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    log = io.StringIO()
    with terminal.DeviceBars(Console(file=log)) as bars:
        for _, done in moments:
            step = {"done": done, "total": 9, "text": f"onnxruntime, batch {done}"}
            bars.show([{"id": "cpu:0", "progress": step}])
    assert log.getvalue().splitlines() == [
        "cpu:0: 4 of 9 steps done; onnxruntime, batch 4",
        "cpu:0: 6 of 9 steps done; onnxruntime, batch 6",
    ]

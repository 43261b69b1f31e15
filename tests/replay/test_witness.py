"""A process that ends in the midst of a policy is told of, with the policy's name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.witness import found_in, note_in, noted, witnessed
from tests.waiting import PATIENCE_S

DYING = """
import ctypes, os
from policies.edf import Edf

class Dying(Edf):
    def __init__(self, how="exit"):
        super().__init__()
        self.how = how
        os.environ["MADE"] = made = os.environ.get("MADE", "") + "x"
        if how == "made" or (how == "made again" and made == "xx"):
            os._exit(0)

    def decide(self, view):
        if self.how == "crash":
            ctypes.string_at(0)
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("command", "how", "told"),
    [
        ("replay", "exit", "laxity: the process ended while policy '{}' on load-0_5, load 0.5, se"),
        ("replay", "crash", "laxity: the process ended while policy '{}' on load-0_5, load 0.5, "),
        ("replay", "made", "laxity: the process ended while policy '{}' was made"),
        (
            "replay",
            "made again",
            "laxity: the process ended while policy '{}' on load-0_5, load 0.5",
        ),
        ("replay --jobs 2", "made again", "crashed; meanwhile policy '{}' on load-0_5, load 0.5, "),
        ("replay --jobs 2", "crash", "code crashed; meanwhile policy '{}' on load-0_5, load 0.5, "),
        ("policy test", "exit", "laxity: the process ended while policy '{}' was tried"),
    ],
)
def test_a_policy_that_ends_the_process_is_named(tmp_path: Path, command, how, told):
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    name = f"{file}?how={how}"
    played = ["load-0_5", "--requests", "9", "--seeds", "2", "--no-bound", "--policy"]
    words = [*command.split(), *(played if "replay" in command else []), name]
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert told.format(name) in ended.stderr
    assert ended.stdout == ""
    assert ended.returncode != 0


FORKING = """
import os, signal, time
from replay.witness import noted, witnessed

with witnessed(), noted("it forked"):
    child = os.fork()
    if not child:
        time.sleep(10 * float(os.environ["PATIENCE_S"]))
os.kill(child, signal.SIGKILL)
"""


def test_what_a_policy_has_started_is_not_waited_for():
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        env=os.environ | {"PATIENCE_S": str(PATIENCE_S)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_of_what_ends_as_it_should_nothing_is_told(capfd):
    with witnessed(), noted("nothing was wrong"):
        pass
    with pytest.raises(KeyboardInterrupt), witnessed(), noted("somebody pressed Ctrl-C"):
        raise KeyboardInterrupt
    assert capfd.readouterr() == ("", "")


def test_what_is_noted_in_a_file_is_there_until_it_is_done(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("replay.witness._write", None)
    with (tmp_path / "notes").open("w+b") as notes:
        note_in(notes.name)
        with noted("a was played"):
            with noted("b was made"):
                assert found_in(notes) == ["b was made"]
            assert found_in(notes) == ["a was played"]
        assert found_in(notes) == []

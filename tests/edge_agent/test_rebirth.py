"""What a life of the agent does about the one before it, in the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.rebirth import end_past_life

SLEEP = """
import sys, time
log = sys.argv[1:] and open(sys.argv[1], "w")
print(flush=True)
time.sleep(60)
"""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", SLEEP, *arguments],
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_what_is_left_of_a_past_life_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    marked = start(LAXITY_AGENT_LIFE="past")
    unmarked = start(str(folder / "ray.log"))
    others = start(), start(LAXITY_AGENT_LIFE="other"), start(str(tmp_path / "run.log"))
    monkeypatch.setenv("LAXITY_AGENT_PAST", "past")
    monkeypatch.setenv("LAXITY_AGENT_PAST_FOLDER", str(folder))
    monkeypatch.setenv("LAXITY_AGENT_SHORT_LIVES", "1")
    end_past_life()
    assert marked.poll() is not None
    assert unmarked.poll() is not None, "one whose environment Ray has overwritten"
    assert [other.poll() for other in others] == [None, None, None]
    assert not folder.exists()
    assert "LAXITY_AGENT_PAST" not in os.environ


def test_a_first_life_ends_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAXITY_AGENT_PAST", raising=False)
    process = start(LAXITY_AGENT_LIFE="any")
    end_past_life()
    assert process.poll() is None

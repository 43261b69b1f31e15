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
    cleaned = start(str(folder / "cleaned.log"))
    (folder / "cleaned.log").unlink()
    others = start(), start(LAXITY_AGENT_LIFE="other"), start(str(tmp_path / "run.log"))
    monkeypatch.setenv("LAXITY_AGENT_PAST", "past")
    monkeypatch.setenv("LAXITY_AGENT_PAST_FOLDER", str(folder))
    monkeypatch.setenv("LAXITY_AGENT_PAST_LISTEN", "tcp://127.0.0.1:1")
    monkeypatch.setenv("LAXITY_AGENT_SHORT_LIVES", "1")
    end_past_life()
    assert marked.poll() is not None
    assert unmarked.poll() is not None, "one whose environment Ray has overwritten"
    assert cleaned.poll() is not None, "one whose log has been removed meanwhile"
    assert [other.poll() for other in others] == [None, None, None]
    assert not folder.exists()
    assert "LAXITY_AGENT_PAST" not in os.environ


LIVES = """
import os, shutil, signal, socket, sys, time
from edge_agent.rebirth import end_past_life, mark_life, start_over
from edge_agent.run_dir import make_run_dir
from edge_agent.terminal import exit_on_signals
from scheduler.address import Address

when, is_first = sys.argv[1], "LAXITY_AGENT_PAST" not in os.environ
if is_first:
    folder = make_run_dir()
    mark_life(folder)
    signal.signal(signal.SIGTERM, lambda *_: None)
    if when == "before":
        signal.raise_signal(signal.SIGTERM)
    listen = Address("unix", path=f"{folder}.sock")
    socket.socket(socket.AF_UNIX).bind(listen.path)
    start_over(time.monotonic(), folder, [listen])
shutil.rmtree(make_run_dir())  # another agent, which removes the folders of killed ones
if when == "between":
    signal.raise_signal(signal.SIGTERM)
end_past_life()
print("ended the past", flush=True)
try:
    exit_on_signals()
except SystemExit as end:
    print("told to end", end.code)
"""


@pytest.mark.parametrize("when", ["before", "between", "never"])
def test_a_signal_between_two_lives_counts_once_the_past_is_ended_and_removed(
    tmp_path: Path, when: str
) -> None:
    script = tmp_path / "lives.py"
    script.write_text(LIVES)
    command = [sys.executable, str(script), when]
    temporary = os.environ | {"TMPDIR": str(tmp_path)}
    lives = subprocess.run(command, capture_output=True, text=True, check=True, env=temporary)
    told = [] if when == "never" else ["told to end None"]
    assert lives.stdout.splitlines() == ["ended the past", *told]
    assert list(tmp_path.iterdir()) == [script]


OPEN = """
import os, sys, time
from pathlib import Path
from edge_agent import rebirth
from edge_agent.run_dir import make_run_dir

if "SECOND" in os.environ:
    rebirth.end_past_life()
    names = [os.path.basename(name) for _, name in rebirth._open_files(rebirth.psutil.Process())]
    print("ray.log (deleted)" in names, "others.log" in names)
    sys.exit()
folder = make_run_dir()
for file in (folder / "ray.log", Path(sys.argv[1])):
    os.set_inheritable(os.open(file, os.O_CREAT | os.O_WRONLY), True)
os.environ["SECOND"] = "1"
if sys.argv[2] == "starts over":
    rebirth.mark_life(folder)
    rebirth.start_over(time.monotonic(), folder, [])
rebirth.shutil.rmtree(folder)
rebirth._PAUSE_S = 0
rebirth.try_again()
"""


@pytest.mark.parametrize("how", ["starts over", "tries again"])
def test_a_life_leaves_no_file_of_its_folder_open_in_the_next(tmp_path: Path, how: str) -> None:
    script = tmp_path / "open.py"
    script.write_text(OPEN)
    command = [sys.executable, str(script), str(tmp_path / "others.log"), how]
    environment = os.environ | {"LAXITY_AGENT_SHORT_LIVES": "0"}
    lives = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert lives.stdout.splitlines() == ["False True"]


def test_a_first_life_ends_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAXITY_AGENT_PAST", raising=False)
    process = start(LAXITY_AGENT_LIFE="any")
    end_past_life()
    assert process.poll() is None

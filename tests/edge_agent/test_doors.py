"""The processes of the HTTP and gRPC doors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from edge_agent.doors import Doors
from scheduler.config.box import Config
from tests.waiting import PATIENCE_S, eventually


def health(doors: Doors) -> int:
    """The status of the only door's answer."""
    (url,) = doors.addresses
    http = HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    with closing(http):
        http.request("GET", "/v2/health/live")
        return http.getresponse().status


def started_with(spec: Path) -> list[psutil.Process]:
    """The processes of doors that were started with a spec and go on."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # it is ending
            if str(spec) in process.cmdline():
                found.append(process)
    return found


def test_a_door_whose_agent_has_gone_meanwhile_ends_without_a_word(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scheduler.ingress.process", str(tmp_path / "http-0.json")]
    door = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (door.returncode, door.stdout, door.stderr) == (1, "", "")


def test_a_door_that_can_not_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for a process may be back in a moment; and what else it prints is its own affair."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nprintf "a package says h\\\\351llo\\\\n"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    popen, failures = subprocess.Popen, [OSError(errno.ENOMEM, "Cannot allocate memory")]

    def start(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    config = Config.model_validate({"listen": {"http": "127.0.0.1:0"}})
    with structlog.testing.capture_logs() as said:
        doors = Doors(config, tmp_path, tmp_path / "scheduler", ())
    try:
        (told,) = (line for line in said if "started again" in line["event"])
        assert told["door"] == "http-0"
        assert told["reason"] == "it could not be started (Cannot allocate memory)"
        assert health(doors) == 200
    finally:
        doors.stop()


def test_a_door_comes_back_though_its_spec_was_cleaned_away(tmp_path: Path) -> None:
    config = Config.model_validate({"listen": {"http": "127.0.0.1:0"}})
    doors = Doors(config, tmp_path, tmp_path / "scheduler", ())
    try:
        spec = tmp_path / "http-0.json"
        spec.unlink()  # as what cleans /tmp does in time
        (process,) = started_with(spec)
        process.kill()
        process.wait()
        assert health(doors) == 200
    finally:
        doors.stop()


@contextmanager
def nobody_reads() -> Iterator[None]:
    """Stderr, for the processes that are started, is a full pipe that is open."""
    read, write = os.pipe()
    own = os.dup(2)
    with open(f"/proc/self/fd/{write}", "wb", buffering=0, opener=_at_once) as pipe:
        while pipe.write(b"."):
            pass
    os.dup2(write, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        for number in (read, write, own):
            os.close(number)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def test_a_door_does_not_wait_for_who_reads_the_log(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 40)
    token.chmod(0o600)
    config = Config.model_validate({"listen": {"http": "127.0.0.1:0"}, "token_file": str(token)})
    spec = tmp_path / "http-0.json"
    seen: set[int] = set()

    def three_in_turn() -> bool:
        found = started_with(spec)
        if not seen:
            (first,) = found
            first.kill()
        seen.update(process.pid for process in found)
        return len(seen) >= 3

    with nobody_reads():
        doors = Doors(config, tmp_path, tmp_path / "scheduler", ())
        try:
            token.unlink()  # which each door says and then ends
            eventually(three_in_turn)
        finally:
            doors.stop()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_door_whose_token_has_gone_says_so_in_a_line_and_opens_once_it_is_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 40)
    token.chmod(0o600)
    config = Config.model_validate(
        {"listen": {kind: "127.0.0.1:0"}, "token_file": str(token), "log": {"format": "json"}}
    )
    doors = Doors(config, tmp_path, tmp_path / "scheduler", ())
    try:
        away = token.rename(tmp_path / "away")
        spec = tmp_path / f"{kind}-0.json"

        def process() -> psutil.Process | None:
            return next(iter(started_with(spec)), None)

        killed = process()
        assert killed is not None
        killed.kill()
        killed.wait()
        said = ""

        def has_said() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "can't be read" in said

        eventually(has_said)
        opened = doors._doors[0].opened
        opened.clear()
        away.rename(token)
        eventually(opened.is_set)
        said += capfd.readouterr().err
        assert "a door can't open" in said
        assert "Traceback" not in said
    finally:
        doors.stop()

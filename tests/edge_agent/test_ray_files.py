"""What Ray needs to start a process is put back or missed once it is gone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge_agent import ray_files
from edge_agent.ray_files import RayFiles


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    sockets = tmp_path / "ray/session_1/sockets"
    sockets.mkdir(parents=True)
    (tmp_path / "ray/session_latest").symlink_to("session_1")
    (sockets / "raylet").touch()
    return sockets / "raylet"


def test_a_token_that_is_gone_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "state/ray_token"
    token.parent.mkdir()
    token.write_text("secret")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    files = RayFiles(tmp_path)
    token.unlink()
    token.parent.rmdir()
    files.put_back_token()
    assert token.read_text() == "secret"
    assert token.stat().st_mode & 0o777 == 0o600

    token.unlink()
    token.parent.rmdir()
    token.parent.touch()  # nothing can be written there
    files.put_back_token()
    token.parent.unlink()
    files.put_back_token()
    assert token.read_text() == "secret"


def test_without_sockets_a_box_goes_on_until_it_lacks_a_process(
    tmp_path: Path, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setattr(ray_files, "_LOOK_S", 0)
    running, said = iter([3, 3, 2]), list[str]()
    monkeypatch.setattr(ray_files, "_running", lambda _: next(running))
    files = RayFiles(tmp_path / "ray")
    assert not files.lack_sockets()
    socket.unlink()
    files.watch(("Worker",), lambda: 3, lambda: True, said.append, threading.Event())
    assert said == [f"Ray's sockets in {tmp_path / 'ray'} have been removed"]
    assert list(running) == []


def test_a_process_that_does_not_come_back_for_long_is_missed_once_all_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_files, "_LOOK_S", 0)
    monkeypatch.setattr(ray_files, "_COUNT_LOOKS", 1)
    ready, said = iter([False, False, False, *[True] * 8]), list[str]()
    running = iter([2, 1, 1, 2, 0, 1, 1])
    monkeypatch.setattr(ray_files, "_running", lambda _: next(running))
    stopping = threading.Event()
    RayFiles(tmp_path).watch(("Worker",), lambda: 2, lambda: next(ready), said.append, stopping)
    assert said == ["Ray has not brought back a process for a minute"]
    assert list(running) == []


def test_a_ray_that_keeps_its_sockets_elsewhere_lacks_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    assert not RayFiles(tmp_path).lack_sockets()

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edge_agent.errors import AgentError
from edge_agent.run_dir import make_run_dir
from edge_agent.state_lock import locked, mask_writing

HOLDS = """
import sys
from edge_agent.run_dir import make_run_dir
print(make_run_dir(), flush=True)
sys.stdin.read()
"""
GONE_PID = 2**22 + 1
"""Above the kernel's largest."""


@pytest.fixture(autouse=True)
def tmp(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_what_a_run_that_was_killed_has_left_is_removed_whoever_has_its_number(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=-1, stdout=-1, text=True)
    with process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        process.kill()
    # In a container that is started again, the next agent has the number of the one before.
    left = left.rename(left.with_name(f"laxity-run-{os.getpid()}-left"))

    made = make_run_dir()

    assert sorted(tmp_path.iterdir()) == [made]
    assert left != made


def test_what_a_run_elsewhere_uses_is_left_alone_though_its_number_is_nobodys_here(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=-1, stdout=-1, text=True)
    with process:
        assert process.stdout is not None
        used = Path(process.stdout.readline().strip())
        used = used.rename(used.with_name(f"laxity-run-{GONE_PID}-used"))

        made = make_run_dir()

        assert sorted(tmp_path.iterdir()) == sorted([made, used])
        assert process.stdin is not None
        process.stdin.close()


def test_a_folder_that_is_being_made_is_left_alone(tmp_path, monkeypatch):
    lock = fcntl.flock

    def first_another(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        others.append(make_run_dir())
        lock(descriptor, how)

    others: list[Path] = []
    monkeypatch.setattr(fcntl, "flock", first_another)
    made = make_run_dir()
    assert sorted(tmp_path.iterdir()) == sorted([made, *others])


def test_a_folder_without_a_lock_goes_by_its_number(tmp_path):
    (tmp_path / f"laxity-run-{GONE_PID}-old").mkdir()
    being_made = tmp_path / f"laxity-run-{os.getpid()}-new"
    being_made.mkdir()

    made = make_run_dir()

    assert sorted(tmp_path.iterdir()) == sorted([made, being_made])


def test_what_another_user_has_made_is_not_even_opened(tmp_path, monkeypatch):
    """Everybody can make folders in /tmp, too deep to be removed, with links to files of others."""
    bait = tmp_path / f"laxity-run-{GONE_PID}-bait"
    bait.mkdir()
    (bait / "lock").symlink_to("/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: bait.stat().st_uid + 1)

    made = make_run_dir()

    assert sorted(tmp_path.iterdir()) == sorted([made, bait])


def test_a_folder_where_no_file_can_grow_is_told_and_left_as_it_was(tmp_path):
    """As on a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    script = f"{limit}\n{HOLDS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    told = f"no folder can be made for sockets and Ray's files: .*; make room in {tmp_path}, or set"
    assert re.search(told, done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_others_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(AgentError, match=r"sockets and Ray's files: No such file or directory; "):
        make_run_dir()


def test_a_state_folder_that_takes_no_locks_is_told(tmp_path, monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(AgentError, match="can't be locked: No locks available; set another state"):
        locked(tmp_path, "agent")


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o755), (0o027, 0o750), (0o077, 0o700)])
def test_nobody_else_may_change_what_a_box_writes(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        mask_writing()
        (tmp_path / "folder").mkdir()
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == mode

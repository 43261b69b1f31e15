from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.crash_guard import FORGET_AFTER_S, MAX_DEATHS, CrashGuard, forgive

DIES = """
import os, sys
from pathlib import Path
from workers.crash_guard import CrashGuard
with CrashGuard(Path(sys.argv[1])).watch("model"):
    os.abort()
"""


@pytest.fixture
def guard(tmp_path):
    return CrashGuard(tmp_path)


def die(folder) -> None:
    subprocess.run([sys.executable, "-c", DIES, folder], check=False, stderr=subprocess.DEVNULL)


def test_what_the_process_keeps_dying_of_is_not_tried_again(guard, tmp_path):
    for _ in range(MAX_DEATHS):
        assert guard.verdict("model") is None
        die(tmp_path)

    assert guard.verdict("another model") is None
    verdict = guard.verdict("model")
    assert verdict is not None
    assert "the worker died 3 times" in verdict
    assert str(tmp_path / "model") in verdict


def test_deaths_while_serving_count_although_attempts_succeed_in_between(guard, tmp_path):
    for _ in range(2):
        guard.count("model")
        with guard.watch("model"):
            pass
    assert guard.verdict("model") is None
    guard.count("model")
    assert "died 3 times while serving it" in guard.verdict("model")
    assert str(tmp_path / "model-serving") in guard.verdict("model")
    assert guard.verdict("other") is None


def test_a_death_within_an_attempt_counts_once(guard, tmp_path):
    with guard.watch("model"):
        guard.count("model")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_attempt_that_ends_clears_its_deaths(guard, tmp_path):
    die(tmp_path)
    die(tmp_path)
    with guard.watch("model"):
        pass
    die(tmp_path)

    assert guard.verdict("model") is None


def test_an_exception_is_no_death(guard, tmp_path):
    with pytest.raises(ValueError, match="bad model"), guard.watch("model"):
        raise ValueError("bad model")

    assert list(tmp_path.iterdir()) == []


def test_deaths_are_forgotten_after_a_while(tmp_path):
    (tmp_path / "model").write_text("3")
    os.utime(tmp_path / "model", (1000, 1000))

    soon = CrashGuard(tmp_path, lambda: 1000 + FORGET_AFTER_S - 1)
    late = CrashGuard(tmp_path, lambda: 1000 + FORGET_AFTER_S + 1)
    set_back = CrashGuard(tmp_path, lambda: 1000 - FORGET_AFTER_S - 1)

    assert soon.verdict("model") is not None
    assert late.verdict("model") is None
    assert set_back.verdict("model") is None


def test_a_file_cut_short_counts_nothing(guard, tmp_path):
    (tmp_path / "model").write_text("")

    assert guard.verdict("model") is None


def test_ending_a_worker_on_purpose_is_no_death_of_what_it_was_trying(tmp_path: Path) -> None:
    trying = (
        "import os, sys\nfrom pathlib import Path\nfrom workers.crash_guard import CrashGuard\n"
        "with CrashGuard(Path(sys.argv[1])).watch(sys.argv[2]):\n"
        "    print(os.getpid(), flush=True)\n    sys.stdin.read()\n"
    )

    def killed_while_trying(key: str) -> int:
        command = [sys.executable, "-c", trying, str(tmp_path), key]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            process.kill()
        return pid

    guard = CrashGuard(tmp_path)
    for _ in range(MAX_DEATHS + 1):
        forgive(tmp_path, {killed_while_trying("stopped")})
    assert guard.verdict("stopped") is None

    for _ in range(MAX_DEATHS - 1):
        killed_while_trying("crashes")
    forgive(tmp_path, {killed_while_trying("crashes")})
    assert guard.verdict("crashes") is None
    last = killed_while_trying("crashes")
    assert guard.verdict("crashes") is not None
    forgive(tmp_path, {last + 1})
    assert guard.verdict("crashes") is not None

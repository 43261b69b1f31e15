from __future__ import annotations

import threading

import pytest

from scheduler.cli.progress import Now, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("scheduler.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with progress("playing", 10) as advance:
        for _ in range(10):
            clock[0] += 6.0
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "laxity: playing: 3 of 10, some 42 s to go",
        "laxity: playing: 6 of 10, some 24 s to go",
        "laxity: playing: 9 of 10, some 6 s to go",
    ]


def test_what_is_soon_done_says_nothing(clock, capsys):
    with progress("playing", 1) as advance:
        clock[0] += 1000.0
        advance()
    assert capsys.readouterr() == ("", "")


def test_a_log_also_hears_of_a_part_that_takes_long(monkeypatch, capsys):
    monkeypatch.setattr("scheduler.cli.progress.EVERY_S", 0.001)
    now, asked = Now(), threading.Event()

    def says() -> str:
        asked.set()
        return "12 requests"

    now.set(says)
    with progress("playing", 1, now):
        assert asked.wait(60)
    assert "laxity: playing: 0 of 1, 12 requests" in capsys.readouterr().err.splitlines()


def test_a_terminal_shows_a_bar_and_takes_it_away(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    now = Now()
    now.set(lambda: "12 requests")
    with progress("playing", 2, now) as advance:
        advance()
    shown = capsys.readouterr().err
    assert "1/2" in shown
    assert "12 requests" in shown
    assert "laxity:" not in shown

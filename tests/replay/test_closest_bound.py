"""A bound that was computed before is had at once, and only where nothing is different."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replay.bound import Conditions, closest, fluid_bound, whole_bound
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass
from tests.core.world import MS, offer, target

M = RequestClass("m")
ARRIVALS = [Arrival(at * MS, M, 12 * MS, weight=1 + at % 3) for at in range(60)]


def usual(_: str, offer: Any, size: int) -> tuple[int, ...]:
    found: tuple[int, ...] = offer.latency_ns[size]
    return found


ASKED: dict[str, Any] = {
    "arrivals": lambda: iter(ARRIVALS),
    "targets": [target()],
    "conditions": {"cpu:0": Conditions()},
    "times": usual,
}


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a bound was computed."""
    calls: list[int] = []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return fluid_bound(*given, **named)

    monkeypatch.setattr(closest, "fluid_bound", counted)
    monkeypatch.setenv("LAXITY_CACHE_DIR", str(tmp_path / "cache"))
    return calls


def test_it_is_computed_once_and_then_the_same_to_the_last_digit(computed: list[int]) -> None:
    named = {"conditions": ASKED["conditions"], "times": usual, "weighted": True}
    least = min(
        fluid_bound(ARRIVALS, ASKED["targets"], **named).share,
        whole_bound(ARRIVALS, ASKED["targets"], **named).share,
    )
    assert [closest.closest_bound(**ASKED) for _ in range(3)] == [least] * 3
    assert 0 < least < 1
    assert len(computed) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"arrivals": lambda: iter(ARRIVALS[:-1])},
        {"arrivals": lambda: iter([*ARRIVALS[:-1], replace(ARRIVALS[-1], weight=7.0)])},
        {"arrivals": lambda: iter([*ARRIVALS[:-1], replace(ARRIVALS[-1], budget_ns=9 * MS)])},
        {"arrivals": lambda: iter([replace(a, kind=RequestClass("m", "v")) for a in ARRIVALS])},
        {"targets": [target("cpu:0", offer(sizes=(1, 2)))]},
        {"conditions": {"cpu:0": Conditions(out_ns=1)}},
        {"times": lambda *asked: tuple(2 * ns for ns in usual(*asked))},
    ],
)
def test_of_anything_else_it_is_another(computed: list[int], other: dict[str, Any]) -> None:
    closest.closest_bound(**ASKED)
    closest.closest_bound(**{**ASKED, **other})
    assert len(computed) == 2


def test_other_code_computes_it_anew(computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    closest.closest_bound(**ASKED)
    monkeypatch.setattr(closest, "_code", lambda: b"of another version")
    closest.closest_bound(**ASKED)
    assert len(computed) == 2


def _is_a_file(folder: Path) -> None:
    folder.touch()


def _is_damaged(folder: Path) -> None:
    folder.mkdir()
    (folder / closest.FILE).write_bytes(b"none of SQLite's" * 100)


@pytest.mark.parametrize("spoil", [_is_a_file, _is_damaged])
def test_where_nothing_can_be_kept_it_is_computed_each_time(
    computed: list[int], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "cache")
    assert closest.closest_bound(**ASKED) == closest.closest_bound(**ASKED)
    assert len(computed) == 2


def test_the_latest_are_kept(
    computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closest, "KEPT", 3)
    for count in range(1, 6):
        closest.closest_bound(**{**ASKED, "arrivals": lambda count=count: iter(ARRIVALS[:count])})
    with closing(sqlite3.connect(tmp_path / "cache" / closest.FILE)) as sql, sql:
        assert sql.execute("SELECT count(*) FROM bounds").fetchone() == (3,)
    closest.closest_bound(**{**ASKED, "arrivals": lambda: iter(ARRIVALS[:5])})
    assert len(computed) == 5


@pytest.mark.parametrize(
    ("named", "xdg", "folder"),
    [
        ("/named", "/xdg", "/named"),
        ("", "/xdg", "/xdg/laxity"),
        ("", "relative", "/home/me/.cache/laxity"),
        ("", "", "/home/me/.cache/laxity"),
    ],
)
def test_where_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, named: str, xdg: str, folder: str
) -> None:
    monkeypatch.setenv("LAXITY_CACHE_DIR", named)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert closest.cache_dir() == Path(folder)

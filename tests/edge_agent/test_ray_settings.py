from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.ray_settings import set_ray_environment


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return tmp_path / "ray_token"


def test_a_token_is_made_once(token: Path) -> None:
    set_ray_environment(token.parent)
    first = token.read_text()
    set_ray_environment(token.parent)

    assert len(first) == 64
    assert token.read_text() == first
    assert token.stat().st_mode & 0o777 == 0o600
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)


@pytest.mark.parametrize("left", ["", "\0" * 64, "5f\0\0", "\x93\x07j\udcff"])
def test_a_token_that_a_lost_write_has_left_is_made_anew(token: Path, left: str) -> None:
    token.write_bytes(left.encode(errors="surrogateescape"))
    set_ray_environment(token.parent)

    assert len(token.read_text()) == 64
    assert "\0" not in token.read_text()
    assert token.read_text().isalnum()


def test_ray_kills_nothing_for_memory_that_others_take_unless_somebody_wants_it(
    token: Path,
) -> None:
    set_ray_environment(token.parent)
    assert os.environ["RAY_memory_monitor_refresh_ms"] == "0"  # noqa: SIM112 (that is its name)
    os.environ["RAY_memory_monitor_refresh_ms"] = "250"  # noqa: SIM112
    set_ray_environment(token.parent)
    assert os.environ["RAY_memory_monitor_refresh_ms"] == "250"  # noqa: SIM112


def test_rays_own_logs_stay_small_unless_somebody_wants_more(token: Path) -> None:
    os.environ["RAY_event_stats"] = "1"  # noqa: SIM112 (that is its name)
    set_ray_environment(token.parent)
    assert os.environ["RAY_event_stats"] == "1"  # noqa: SIM112
    assert int(os.environ["RAY_event_stats_print_interval_ms"]) >= 600_000  # noqa: SIM112
    kept = 1 + int(os.environ["RAY_ROTATION_BACKUP_COUNT"])
    assert kept * int(os.environ["RAY_ROTATION_MAX_BYTES"]) <= 10**7

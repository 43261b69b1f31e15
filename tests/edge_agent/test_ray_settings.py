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

"""The configuration of a life that begins while its file has a mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.last_config import LastConfig, load_again
from scheduler.config.problems import ConfigError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text("models: ./mine\nsite: one\n")
    return path


def test_without_a_mistake_it_is_that_of_the_file(file: Path, tmp_path: Path) -> None:
    LastConfig(file, {}, tmp_path).keep()
    file.write_text("site: two")
    config, mistake = load_again(file)
    assert (config.site, mistake) == ("two", None)


@pytest.mark.parametrize("broken", ["site: [", "sit: two", None])
def test_with_one_it_is_the_last_without(file: Path, tmp_path: Path, broken: str | None) -> None:
    last = LastConfig(file, {"drain_s": 3}, tmp_path)
    last.keep()
    file.write_text("models: ./mine\nsite: two\n")
    last.keep()
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    last.keep()
    config, mistake = load_again(file, {"drain_s": 3})
    assert (config.site, config.models, config.drain_s) == ("two", tmp_path / "mine", 3)
    assert str(mistake).startswith(str(file))


def test_a_first_life_has_none(file: Path) -> None:
    file.write_text("site: [")
    with pytest.raises(ConfigError):
        load_again(file)


def test_one_that_was_emptied_is_not_kept(file: Path, tmp_path: Path) -> None:
    last = LastConfig(file, {}, tmp_path)
    last.keep()
    file.write_text("\n")
    last.keep()
    file.write_text("site: [")
    assert load_again(file)[0].site == "one"


def test_the_copy_is_for_this_user_alone_and_goes_in_the_end(file: Path, tmp_path: Path) -> None:
    last = LastConfig(file, {}, tmp_path)
    last.keep()
    (copy,) = tmp_path.glob("last_config*")
    assert copy.stat().st_mode & 0o777 == 0o600
    last.forget()
    assert not copy.exists()
    last.forget()

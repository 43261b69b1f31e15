"""The configuration of a life that begins while its file has a mistake."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from scheduler.config import last_config
from scheduler.config.box import Config
from scheduler.config.last_config import LastConfig, load_again
from scheduler.config.problems import ConfigError, Problem

MISTAKES = ["site: [", "sit: two", "\n", None]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ["LAXITY_STATE_DIR"] = str(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text("models: ./mine\nsite: one\n")
    return path


def serving(file: Path, state_dir: Path, **over: object) -> LastConfig:
    """What a box keeps that has started with the file."""
    last = LastConfig(file, over, state_dir)
    last.begin()
    last.keep()
    return last


def write(file: Path, text: str | None) -> None:
    file.unlink() if text is None else file.write_text(text)


def killed() -> None:
    """The next process is no further life of the same one."""
    os.environ.pop("LAXITY_AGENT_LAST_CONFIG", None)


def test_without_a_mistake_it_is_that_of_the_file(file: Path, tmp_path: Path) -> None:
    serving(file, tmp_path)
    file.write_text("site: two")
    config, mistake = load_again(file)
    assert (config.site, mistake) == ("two", None)


@pytest.mark.parametrize("broken", MISTAKES)
def test_with_one_it_is_the_last_without(file: Path, tmp_path: Path, broken: str | None) -> None:
    last = serving(file, tmp_path, drain_s=3)
    file.write_text("models: ./mine\nsite: two\n")
    last.keep()
    write(file, broken)
    last.keep()
    config, mistake = load_again(file, {"drain_s": 3})
    assert (config.site, config.models, config.drain_s) == ("two", tmp_path / "mine", 3)
    assert str(mistake).startswith(str(file))


def test_a_policy_that_can_not_be_used_is_a_mistake(file: Path, tmp_path: Path) -> None:
    def check(config: Config) -> None:
        if config.policy.name != "goodput":
            raise ConfigError(str(file), [Problem("policy", "is not known")])

    serving(file, tmp_path)
    file.write_text("site: two\npolicy: goodputt\n")
    config, mistake = load_again(file, {}, check)
    assert (config.site, config.policy.name) == ("one", "goodput")
    assert "is not known" in str(mistake)


@pytest.mark.parametrize("broken", ["site: [", "sit: two", None])
def test_a_first_life_has_none(file: Path, broken: str | None) -> None:
    write(file, broken)
    with pytest.raises(ConfigError):
        load_again(file)


def test_one_that_was_emptied_is_not_kept(file: Path, tmp_path: Path) -> None:
    last = serving(file, tmp_path)
    file.write_text("\n")
    last.keep()
    file.write_text("site: [")
    assert load_again(file)[0].site == "one"


# -- after a box was ended in the middle of its life


@pytest.mark.parametrize("broken", MISTAKES)
def test_a_mistake_that_the_box_had_refused_keeps_the_next_from_nothing(
    file: Path, tmp_path: Path, broken: str | None
) -> None:
    last = serving(file, tmp_path)
    write(file, broken)
    last.refuse()
    killed()
    config, mistake = load_again(file)
    assert (config.site, config.models) == ("one", tmp_path / "mine")
    assert str(mistake).startswith(str(file))
    LastConfig(file, {}, tmp_path).begin()
    assert load_again(file)[0].site == "one", "nor any further life"


@pytest.mark.parametrize("broken", ["site: [", "sit: two"])
def test_whoever_has_changed_the_file_since_is_told_of_the_mistake(
    file: Path, tmp_path: Path, broken: str
) -> None:
    last = serving(file, tmp_path)
    killed()
    file.write_text(broken)
    with pytest.raises(ConfigError):
        load_again(file)
    last.refuse()
    file.write_text(f"drain_s: 3\n{broken}")
    with pytest.raises(ConfigError):
        load_again(file)


def test_a_mistake_that_was_mended_before_the_end_is_told_if_it_is_made_again(
    file: Path, tmp_path: Path
) -> None:
    good, last = file.read_text(), serving(file, tmp_path)
    file.write_text("site: [")
    last.refuse()
    file.write_text(good)
    last.keep()
    killed()
    file.write_text("site: [")
    with pytest.raises(ConfigError):
        load_again(file)


def test_a_mistake_that_was_mended_since_is_one_no_more(file: Path, tmp_path: Path) -> None:
    last = serving(file, tmp_path)
    last.refuse()  # as for a policy whose own file had a mistake
    killed()
    file_says = load_again(file)
    assert (file_says[0].site, file_says[1]) == ("one", None)


@pytest.mark.parametrize("named", ["state_dir: there", 'state_dir: "./there" # mine'])
def test_the_copy_is_found_in_the_folder_that_the_file_names(
    file: Path, tmp_path: Path, named: str
) -> None:
    (tmp_path / "there").mkdir()
    file.write_text(f"{named}\nsite: one\n")
    last = serving(file, tmp_path / "there")
    file.write_text(f"{named}\nsite: [\n")
    last.refuse()
    killed()
    assert load_again(file)[0].site == "one"


def test_a_copy_that_a_power_failure_has_emptied_is_none(file: Path, tmp_path: Path) -> None:
    last = serving(file, tmp_path)
    file.write_text("site: [")
    last.refuse()
    (tmp_path / "last_config.yaml").write_text("")
    killed()
    with pytest.raises(ConfigError):
        load_again(file)


def test_after_an_orderly_end_a_mistake_is_refused(file: Path, tmp_path: Path) -> None:
    last = serving(file, tmp_path)
    file.write_text("site: [")
    last.refuse()
    last.forget()
    killed()
    with pytest.raises(ConfigError):
        load_again(file)


def test_a_box_that_starts_without_a_mistake_forgets_what_an_earlier_one_left(
    file: Path, tmp_path: Path
) -> None:
    serving(file, tmp_path).refuse()
    killed()
    LastConfig(file, {}, tmp_path).begin()
    assert not list(tmp_path.glob("last_config*"))


def test_a_copy_that_can_not_be_renewed_counts_no_more(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    last = serving(file, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(last_config, "replace_file", full)
        last.keep()
        assert load_again(file)[0].site == "one", "it is the same as before"
        file.write_text("site: two\n")
        last.keep()
    file.write_text("site: [")
    last.refuse()
    for next_life in (True, False):
        with pytest.raises(ConfigError):
            load_again(file)
        if next_life:
            killed()


def test_the_copy_is_for_this_user_alone_and_goes_in_the_end(file: Path, tmp_path: Path) -> None:
    last = serving(file, tmp_path)
    last.refuse()
    found = list(tmp_path.glob("last_config*"))
    assert [path.stat().st_mode & 0o777 for path in found] == [0o600, 0o600]
    last.forget()
    assert not any(path.exists() for path in found)
    last.forget()

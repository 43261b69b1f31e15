"""Which policy a scheduler begins with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.main import _check_settings
from policies.edf import Edf
from scheduler.config.box import Config, load_config
from scheduler.config.last_config import LastConfig, load_again
from scheduler.config.policy import PolicyConfig
from scheduler.config.problems import ConfigError
from scheduler.core.policy import Policy
from scheduler.daemon import reloading
from scheduler.daemon.driver import Driver
from scheduler.daemon.reloading import LiveConfig, Reloaded, first_policy, reloaded


def begun(name: str) -> Reloaded:
    """What is read where there is no file."""
    return reloaded(Config(policy=PolicyConfig(name=name)), None, {})


def test_the_one_that_was_made_of_the_file(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.write_text("policy: {name: edf, quantile: 0.9}\n")
    read = reloaded(Config(), file, {})
    assert read.config.policy.options == {"quantile": 0.9}
    assert first_policy(read, file, None) == (read.policy, None)


def test_without_a_file_the_one_of_the_configuration():
    policy, lacking = first_policy(begun("edf"), None, None)
    assert (type(policy), lacking) == (Edf, None)


def test_with_mistakes_in_the_file_the_one_there_was(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.write_text("policy: {name: no-such}\n")
    policy, lacking = first_policy(reloaded(begun("edf").config, file, {}), file, None)
    assert (type(policy), lacking) == (Edf, None)


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_a_file_that_was_emptied_is_being_written(tmp_path: Path, text: str):
    file = tmp_path / "edge.yaml"
    file.write_text("policy: edf\ndrain_s: 3\n")
    old = load_config(file)
    file.write_text(text)
    read = reloaded(old, file, {})
    assert (read.config, read.policy) == (old, None)
    assert [f"{file}: it is empty" in told for told in read.not_taken] == [True]
    file.write_text("# every default\n")
    assert reloaded(old, file, {}).config.policy.name == "goodput"


def test_a_pipe_in_the_place_of_the_file_is_waited_for_by_nobody(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    os.mkfifo(file)
    last, read = LastConfig(file, {}, tmp_path), reloaded(Config(), file, {})
    last.keep()
    last.refuse()
    (told,) = read.not_taken
    assert "must be a regular file" in told
    assert read.policy is None


def test_a_file_that_was_empty_from_the_start_means_the_defaults(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.touch()
    assert reloaded(load_config(file), file, {}).not_taken == []


@pytest.mark.parametrize(
    ("text", "keys"), [("drain_s: 3", "drain_s"), ("drain_s: 3\nsite: a", "site, drain_s")]
)
def test_what_waits_for_the_next_start_is_told_whether_it_is_one_key_or_several(
    tmp_path: Path, text: str, keys: str
):
    file = tmp_path / "edge.yaml"
    file.write_text("# every default\n")
    old = load_config(file)
    file.write_text(f"{text}\n")
    told = reloaded(old, file, {}).not_taken
    assert told == [f"{file}: changes to {keys} wait for the next start"]


@pytest.mark.parametrize(
    ("mistaken", "said"),
    [
        ("options: {treads: 2}", "unknown option 'treads'"),
        ("cores: [98765]", "cores that this machine does not have: [98765]"),
    ],
)
def test_a_mistake_in_a_device_is_one_before_the_next_start_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistaken: str, said: str
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    file, state = tmp_path / "edge.yaml", tmp_path / "state"
    state.mkdir()
    file.write_text(f"state_dir: {state}\nsite: one\n")
    old = load_config(file)
    LiveConfig(old, file, {}, tmp_path)
    file.write_text(f"state_dir: {state}\nsite: two\ndevices: [{{id: 'cpu:0', {mistaken}}}]\n")
    live = LiveConfig(old, file, {}, tmp_path)
    assert [said in told for told in live.not_taken] == [True]
    check = partial(_check_settings, file)
    config, mistake = load_again(file, {}, check)
    assert (config.site, said in str(mistake)) == ("one", True), "also after a power failure"


def test_none_where_it_hung(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.write_text("policy: {name: edf}\n")
    assert first_policy(reloaded(Config(), file, {}), file, "it hung") == (None, "it hung")


def test_one_that_can_not_be_made_is_an_error_but_where_the_scheduler_was_brought_back(monkeypatch):
    with pytest.raises(ConfigError, match="policy 'no-such' is not known"):
        first_policy(begun("no-such"), None, None)
    monkeypatch.setattr(reloading, "is_brought_back", lambda: True)
    policy, lacking = first_policy(begun("no-such"), None, None)
    assert policy is None
    assert "policy 'no-such' is not known" in str(lacking)


LIVES = """
import sys, time
from pathlib import Path
from scheduler.config.box import load_config
from scheduler.daemon.actor import SchedulerProcess

file = Path(sys.argv[1])
config = load_config(file)


def life():
    return SchedulerProcess(config, file, {}, {}, (), file.with_name("doors"))


def saved(life, policy, told):
    file.write_text(file.read_text().replace(life._live.config.policy.name, policy))
    life.reload()
    while not told(life):
        time.sleep(0.01)


first = life()
saved(first, "edf", lambda life: life._driver.policy.name == "edf")
saved(first, "no-such", lambda life: life._live.not_taken)
first.drain(0)
second = life()
print(second._driver.policy.name, len(second._live.not_taken))
second.drain(0)
"""


def test_with_mistakes_in_the_file_the_next_scheduler_goes_on_with_the_last_one(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    listen = f"{{native: 'unix://{tmp_path}/s'}}"
    file.write_text(f"policy: fcfs\nstate_dir: state\nlisten: {listen}\n")
    command = [sys.executable, "-c", LIVES, str(file)]
    lives = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert lives.stdout.splitlines()[-1] == "edf 1"


BROKEN = """
import sys
from pathlib import Path
from scheduler.config.box import load_config
from scheduler.daemon.actor import SchedulerProcess

file, token = map(Path, sys.argv[1:])
config = load_config(file)


def life():
    return SchedulerProcess(config, file, {}, {}, (), file.with_name("doors"))


first = life()
token.write_text("a token that was replaced since")
first.reload()
token.write_text("half")
first.reload()
print(len(first._files.not_taken))
first.drain(0)
second = life()
known = second._door.rules.access.by_token(sys.stdin.read())
print(len(second._files.not_taken), known.name)
token.write_text(token.name * 10)
second.reload()
print(second._files.not_taken)
second.drain(0)
"""


def test_with_a_mistake_in_the_tokens_the_next_scheduler_goes_on_with_the_last_ones(
    tmp_path: Path,
):
    file, token = tmp_path / "edge.yaml", tmp_path / "token"
    token.touch(0o600)
    token.write_text("the first token of the box")
    listen = f"{{native: 'unix://{tmp_path}/s'}}"
    file.write_text(f"state_dir: state\ntoken_file: token\nlisten: {listen}\n")
    command = [sys.executable, "-c", BROKEN, str(file), str(token)]
    (tmp_path / "state").mkdir()
    lives = subprocess.run(
        command,
        input="a token that was replaced since",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line for line in lives.stdout.splitlines() if line[0] != "{"] == ["1", "1 owner", "[]"]


def test_a_file_that_is_saved_while_no_thread_can_be_started_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        file = tmp_path / "edge.yaml"
        file.write_text(f"policy: goodput\nstate_dir: {tmp_path}\n")
        live = LiveConfig(load_config(file), file, {}, tmp_path)
        driver = Driver()
        live.watch(driver, asyncio.get_running_loop())
        monkeypatch.setattr(threading.Thread, "start", no_more)
        for text in ("edf", "nonsense", "fcfs"):
            file.write_text(f"policy: {text}\nstate_dir: {tmp_path}\n")
            live.read_again()
            while not (driver.policy[0] == text or live.not_taken):
                await asyncio.sleep(0.01)
            assert bool(live.not_taken) == (text == "nonsense")
            live.not_taken = []
        await driver.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_mistake_is_in_the_status_before_a_slow_disk_has_noted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(_: LastConfig) -> None:
        asked.set()
        go_on.wait(30)

    async def run() -> None:
        driver = Driver()
        live.watch(driver, asyncio.get_running_loop())
        file.write_text(f"policy: nonsense\nstate_dir: {tmp_path}\n")
        live.read_again()
        while not asked.is_set():
            await asyncio.sleep(0.01)
        told = live.not_taken
        go_on.set()
        await driver.close()
        assert ["nonsense" in each for each in told] == [True]

    file = tmp_path / "edge.yaml"
    file.write_text(f"policy: goodput\nstate_dir: {tmp_path}\n")
    live = LiveConfig(load_config(file), file, {}, tmp_path)
    monkeypatch.setattr(LastConfig, "refuse", slow)
    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_policy_that_is_in_use_is_not_called_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    class Asked(Driver):
        def take_policy(self, policy: Policy, name: str, options: dict[str, Any]) -> None:
            super().take_policy(policy, name, options)
            called.append(live.not_taken_yet())

    async def run() -> None:
        driver = Asked()
        live.watch(driver, asyncio.get_running_loop())
        file.write_text(f"policy: edf\nstate_dir: {tmp_path}\n")
        live.read_again()
        while not called:
            await asyncio.sleep(0.01)
        await driver.close()

    monkeypatch.setattr(reloading, "_READING_S", 0)
    file = tmp_path / "edge.yaml"
    file.write_text(f"policy: goodput\nstate_dir: {tmp_path}\n")
    live = LiveConfig(load_config(file), file, {}, tmp_path)
    asyncio.run(asyncio.wait_for(run(), 30))
    assert called == [[]]

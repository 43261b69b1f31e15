"""A scheduler that stands still is told of, with the line of the policy, and ended for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from policies.hedge import Hedged
from scheduler.config.policy import PolicyConfig
from scheduler.daemon import pulse
from scheduler.daemon.driver import Driver
from scheduler.daemon.hung_policy import HungPolicy
from scheduler.policy_loading import FALLBACK, NamedPolicy

PATIENCE_S = 60

WAITS = f"""
import threading
class Waits:
    asked, told = threading.Event(), threading.Event()
    def decide(self, view):
        self.asked.set()
        self.told.wait({PATIENCE_S})
        return ()
"""


class Hung:
    """A driver whose policy waits, on a loop that therefore stands still."""

    def __init__(self, driver: Driver, policy: Any, thread_id: int) -> None:
        self.driver = driver
        self.logs: list[Any] = []
        self.ended: list[str] = []
        self.on_log: Callable[[], None] = lambda: None
        self._policy = policy
        self._thread_id = thread_id

    def look(self) -> None:
        pulse.look(self.driver._loop, self._thread_id, self.driver, self._end)

    def noted(self, _logger: Any, level: str, entry: Any) -> Any:
        self.logs.append({"level": level, **entry})
        self.on_log()
        raise structlog.DropEvent

    def go_on(self) -> None:
        self._policy.told.set()

    def _end(self, why: str) -> None:
        self.ended.append(why)
        self.go_on()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    return path


@pytest.fixture
def hung(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    monkeypatch.setattr(pulse, "LOOK_S", 0.05)

    async def made() -> Driver:
        return Driver(NamedPolicy(str(file), {}))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert thread.ident is not None
    try:
        driver = asyncio.run_coroutine_threadsafe(made(), loop).result(PATIENCE_S)
        waits: Any = driver.core.policy
        hung = Hung(driver, waits, thread.ident)
        monkeypatch.setattr(pulse, "log", structlog.wrap_logger(None, processors=[hung.noted]))
        loop.call_soon_threadsafe(waits.decide, None)
        assert waits.asked.wait(PATIENCE_S)
        yield hung
        waits.told.set()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def test_a_policy_that_waits_is_told_with_its_line_and_so_is_its_end(
    hung: Hung, file: Path
) -> None:
    hung.on_log = hung.go_on
    hung.look()
    still, on = hung.logs
    assert (still["level"], still["event"]) == ("error", "the scheduler stands still")
    assert (still["policy"], still["at"][:-1]) == (str(file), f"{file}:")
    assert still["mend"].endswith("the scheduler starts anew with goodput")
    assert (on["level"], on["event"]) == ("warning", "the scheduler goes on")
    assert hung.ended == []


def test_of_a_wrapped_policy_that_waits_its_own_line_is_told(hung: Hung, file: Path) -> None:
    hung.driver.core.policy = Hedged(hung.driver.core.policy)
    hung.on_log = hung.go_on
    hung.look()
    assert hung.logs[0]["at"][:-1] == f"{file}:"


def test_a_policy_that_comes_to_no_end_is_ended(
    hung: Hung, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "END_S", 0.05)
    hung.look()
    (why,) = hung.ended
    assert why.startswith(f"{file}: no end after ")
    assert f"at {file}:" in why
    assert [log["level"] for log in hung.logs] == ["error", "error", "warning"]


def test_the_default_is_not_ended_for_what_would_take_its_place(
    hung: Hung, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "END_S", 0.05)
    hung.driver.policy = FALLBACK
    hung.on_log = hung.go_on
    hung.look()
    assert hung.ended == []
    assert "kill -9" in hung.logs[0]["mend"]


def test_only_that_very_policy_is_remembered_to_have_hung(tmp_path: Path) -> None:
    hung, policy = HungPolicy(tmp_path / "note"), PolicyConfig.model_validate({"name": "a", "n": 1})
    files = {tmp_path / "a.py": b"while True: pass"}
    assert hung.why(policy, files) is None
    hung.note(policy, files, "it hung")
    assert hung.why(policy, files) == "it hung"
    assert hung.why(PolicyConfig.model_validate({"name": "a", "n": 2}), files) is None
    assert hung.why(policy, {tmp_path / "a.py": b"return ()"}) is None
    hung.forget()
    assert hung.why(policy, files) is None
    (tmp_path / "note").write_text("")
    assert hung.why(policy, files) is None


LIFE = """
import json, sys, time
from pathlib import Path
from scheduler.config.box import Config
from scheduler.daemon import pulse
from scheduler.daemon.actor import SchedulerProcess
pulse.LOOK_S = pulse.END_S = 0.05
folder = Path(sys.argv[1])
given = {"policy": {"name": str(folder / "waits.py")}, "state_dir": str(folder / "state")}
config = Config.model_validate({**given, "listen": {"native": f"unix://{folder}/s"}})
life = SchedulerProcess(config, None, {}, {}, (), folder / "doors")
told = life._driver.status()
print(json.dumps([told["policy"], told["policy_problem"]]), flush=True)
if told["policy_problem"] is None:
    life._loop.call_soon_threadsafe(life._driver.core.policy.decide, None)
    time.sleep(60)
life.drain(0)
"""


def test_the_next_scheduler_does_without_a_policy_that_came_to_no_end(
    file: Path, tmp_path: Path
) -> None:
    def live() -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-c", LIFE, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    code, (policy, problem) = live()
    assert (code, policy["name"], problem) == (1, str(file), None)
    code, (policy, problem) = live()
    assert (code, policy["name"]) == (0, "goodput")
    assert f"{file}: no end after " in problem
    file.write_text(WAITS + "# mended")
    _, (policy, problem) = live()
    assert (policy["name"], problem) == (str(file), None)


@pytest.mark.parametrize(("slept_s", "told"), [(5.0, []), (9.9, []), (20.25, [15.25])])
def test_a_process_that_was_stopped_says_so(
    slept_s: float, told: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 100.0 + slept_s))
    slept: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: next(clock), sleep=slept.append)
    monkeypatch.setattr(pulse, "time", fake)
    with structlog.testing.capture_logs() as logs:
        pulse.rest()
    assert slept == [pulse.LOOK_S]
    assert [log["stood_s"] for log in logs] == told

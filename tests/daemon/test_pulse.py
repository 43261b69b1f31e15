"""A scheduler that stands still is told of, with the line of the policy."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import structlog

from scheduler.daemon import pulse
from scheduler.daemon.driver import Driver

PATIENCE_S = 60


async def _driver(policy: str) -> Driver:
    return Driver((policy, {}))


def test_a_policy_that_waits_is_told_with_its_line_and_so_is_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pulse, "LOOK_S", 0.05)
    file = tmp_path / "waits.py"
    file.write_text(
        "import threading\n"
        "class Waits:\n"
        "    asked, told = threading.Event(), threading.Event()\n"
        "    def decide(self, view):\n"
        "        self.asked.set()\n"
        f"        self.told.wait({PATIENCE_S})\n"
        "        return ()\n"
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert thread.ident is not None
    try:
        driver = asyncio.run_coroutine_threadsafe(_driver(str(file)), loop).result(PATIENCE_S)
        waits: Any = driver.core.policy
        logs: list[Any] = []

        def noted(_logger: Any, level: str, entry: Any) -> Any:
            logs.append({"level": level, **entry})
            waits.told.set()
            raise structlog.DropEvent

        monkeypatch.setattr(pulse, "log", structlog.wrap_logger(None, processors=[noted]))
        loop.call_soon_threadsafe(waits.decide, None)
        assert waits.asked.wait(PATIENCE_S)
        pulse.look(loop, thread.ident, driver)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
    still, on = logs
    assert (still["level"], still["event"]) == ("error", "the scheduler stands still")
    assert (still["policy"], still["at"][:-1]) == (str(file), f"{file}:")
    assert still["mend"].endswith(f"kill -9 {os.getpid()}")
    assert (on["level"], on["event"]) == ("warning", "the scheduler goes on")

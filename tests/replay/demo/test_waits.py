from __future__ import annotations

import asyncio
from typing import Any

from replay.demo import waits
from replay.demo.waits import CoreWaits, wait_warning
from scheduler import Unavailable


def test_a_device_that_had_its_core_is_not_excused():
    assert wait_warning({}) is None
    assert wait_warning({"cpu:0": [], "cpu:1": [0.0, 0.05]}) is None


def test_the_device_that_waited_most_is_named():
    warning = wait_warning({"cpu:0": [0.1, 0.3], "cpu:1": [0.5, 0.3]})
    assert warning is not None
    assert warning.startswith("cpu:1 waited for a core for 40 % of its time")


def test_what_the_box_tells_is_collected_though_it_is_silent_once(monkeypatch):
    monkeypatch.setattr(waits, "_LOOK_S", 0.0)

    class Client:
        def __init__(self) -> None:
            self.answers: list[Any] = [[("cpu:0", 0.2)], None, [("cpu:0", 0.4), ("gpu:0", None)]]
            self.asked = asyncio.Event()

        async def status(self) -> dict[str, Any]:
            if not self.answers:
                self.asked.set()
                await asyncio.sleep(3600)
            told = self.answers.pop(0)
            if told is None:
                raise Unavailable("gone")
            read = [(name, {} if share is None else {"core_wait": share}) for name, share in told]
            return {"targets": [{"id": name, "telemetry": each} for name, each in read]}

    async def watched() -> dict[str, list[float]]:
        client: Any = Client()
        watching = CoreWaits(client)
        await client.asked.wait()
        watching.stop()
        return watching.shares

    assert asyncio.run(watched()) == {"cpu:0": [0.2, 0.4]}

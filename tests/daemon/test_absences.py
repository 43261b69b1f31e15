"""How long a target that is lost is expected to be away."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scheduler.daemon.driver import Driver
from scheduler.daemon.link import RESTART_NS
from tests.core.world import target


def test_one_long_absence_says_little_of_the_next(tmp_path: Path) -> None:
    now_ns = 10**12

    async def scene() -> list[float]:
        nonlocal now_ns
        driver = Driver(clock_ns=lambda: now_ns)
        driver.add_device("cpu:0", tmp_path / "nobody.sock")
        driver.on_up(target())
        expected = []
        for away_s in (1, 36_000, 36_000, 20, 0.001, 20):
            driver.on_lost("cpu:0", "it was killed")
            now_ns += int(away_s * 1e9)
            driver.on_up(target())
            expected.append(driver._ways["cpu:0"].away_ns / RESTART_NS)
        await driver.close()
        return expected

    assert asyncio.run(scene()) == [1 / 3, 1, 2, 4, 0.001 / 3, 1]

"""How long a target that is lost is expected to be away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scheduler.daemon.driver import Driver
from scheduler.daemon.link import RESTART_NS
from scheduler.daemon.worker_link import WorkerLink
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
            expected.append(driver._linked["cpu:0"].away_ns / RESTART_NS)
        await driver.close()
        return expected

    assert asyncio.run(scene()) == [1 / 3, 1, 2, 4, 0.001 / 3, 1]


def test_a_link_that_an_error_ends_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(WorkerLink):
        async def keep_connected(self) -> None:
            raise RuntimeError("a mistake in here")

    async def scene() -> None:
        driver = Driver()
        driver.add_target("cpu:0", Broken("cpu:0", Path("/none"), driver))
        await asyncio.sleep(0.01)
        assert "the link to cpu:0" in capsys.readouterr().out
        await driver.close()

    asyncio.run(scene())

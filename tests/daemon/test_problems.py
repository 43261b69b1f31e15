"""What targets say that they can't serve, in the log."""

from __future__ import annotations

import asyncio

import structlog.testing

from scheduler.daemon.driver import Driver


def test_a_problem_is_logged_when_it_comes_up_and_not_each_time_it_is_told():
    async def told() -> list[str]:
        driver = Driver()
        with structlog.testing.capture_logs() as logs:
            for problems in (
                [["a", "x"]],
                [["a", "x"]],
                [["a", "x"], ["b", "y"]],
                [],
                [["a", "x"]],
            ):
                driver.on_catalog("cpu:0", [], problems)
        return [entry["model"] for entry in logs if entry["event"] == "problem with a model"]

    assert asyncio.run(told()) == ["a", "b", "a"]

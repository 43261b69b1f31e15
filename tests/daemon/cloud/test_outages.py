"""Links that die, servers that hang, budgets that end: what becomes of requests meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog.testing

from replay.links import LinkEmulator, OneWay
from scheduler.core.outcomes import Outcome
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.cloud.link import CloudLink
from tests.daemon.cloud.boxes import box_of, numbers
from tests.daemon.cloud.far_server import far_server, good
from tests.daemon.cloud.test_link import abort, hang

WAY = OneWay(delay_ms=5.0)


def test_a_pulled_cable_gives_requests_back_long_before_their_deadline(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            link = LinkEmulator("127.0.0.1:0", f"127.0.0.1:{far.port}", up=WAY, down=WAY)
            async with link, box_of(f"grpc://{link.address[6:]}", tmp_path) as box:
                await box.until(lambda: box.is_up)
                await box.ask()
                link.outage()
                cut_s = time.monotonic()
                _, future = box.post(2.0, deadline_ms=60_000)
                await box.until(lambda: box.breaker == "open")
                assert time.monotonic() - cut_s < 5.0
                await box.until(lambda: not box.driver.core.runs)
                assert not future.done(), "it waits in the queue, where a device could take it"
                link.restore()
                assert numbers(await future) == [4.0] * 4
                await box.until(lambda: box.breaker == "closed")

    asyncio.run(run())


def test_an_idle_link_that_dies_is_noticed_and_closed(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path, probe_s=0.05) as box:
            await box.until(lambda: box.is_up)
            far.alive.clear()
            await box.until(lambda: box.breaker == "open")
            assert box.driver.core.targets["far"].closed_until_ns > box.driver.clock_ns()
            assert (await box.ask(deadline_ms=1)).outcome is Outcome.UNAVAILABLE
            far.alive.set()
            await box.until(lambda: box.breaker == "half-open")
            assert box.driver.core.targets["far"].spec.slots == 1
            assert numbers(await box.ask(2.0, deadline_ms=60_000)) == [4.0] * 4
            await box.until(lambda: box.driver.core.targets["far"].spec.slots > 1)

    asyncio.run(run())


def test_a_probe_that_is_late_is_sent_again_and_meanwhile_nothing_new_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path, expected_ms=1) as box:
            closed_for = []

            def told(spec: TargetSpec, closed_ns: int) -> None:
                closed_for.append(closed_ns)
                tell(spec, closed_ns)

            tell = box.driver.on_changed
            monkeypatch.setattr(box.driver, "on_changed", told)
            await box.until(lambda: box.is_up)
            far.behaviour = hang
            _, held = box.post(1.0, deadline_ms=60_000)
            await box.until(lambda: far.asked)
            far.behaviour = good
            for _ in range(3):
                closed_for.clear()
                far.late = 1
                await box.until(lambda: any(closed_for) and closed_for[-1] == 0)
                assert numbers(await box.ask(2.0, deadline_ms=60_000)) == [4.0] * 4
            assert box.link.describe()["breaker"]["trips"] == 0
            assert not held.done()
            assert far.cancelled == 0, "what was there has been left there"

    asyncio.run(run())


def test_a_server_that_hangs_is_left_alone_after_some_deadlines(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path) as box:
            await box.until(lambda: box.is_up)
            far.behaviour = hang
            # Probes are answered, so that nothing but the deadlines tells that it hangs.
            for _ in range(100):
                answer = await box.ask(deadline_ms=60)
                assert answer.outcome is not Outcome.COMPLETED
                if box.breaker != "closed":
                    break
            assert box.link.describe()["breaker"]["trips"] > 0

    asyncio.run(run())


def test_the_log_says_once_that_a_server_fails_however_often_it_is_tried(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path) as box:
            trips = lambda: box.link.describe()["breaker"]["trips"]  # noqa: E731
            await box.until(lambda: box.is_up)
            with structlog.testing.capture_logs() as logs:
                far.behaviour = abort(grpc.StatusCode.INTERNAL)
                while trips() < 3:
                    await box.ask(deadline_ms=60_000)
                far.behaviour = good
                while box.breaker != "closed":
                    await box.ask(deadline_ms=60_000)
        said = [each["event"] for each in logs if "breaker" in each["event"]]
        assert said == ["cloud breaker opened", "cloud breaker closed"]

    asyncio.run(run())


def test_a_server_that_dies_and_comes_back_is_used_again(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path, probe_s=0.05) as box:
            await box.until(lambda: box.is_up)
            await far.stop()
            await box.until(lambda: box.breaker == "open")
            async with far_server(far.port):
                assert numbers(await box.ask(2.0, deadline_ms=60_000)) == [4.0] * 4

    asyncio.run(run())


def test_a_server_that_is_not_there_at_first_is_found_when_it_is(tmp_path: Path):
    async def run() -> None:
        async with far_server() as gone:
            pass
        async with box_of(gone.url, tmp_path) as box:
            told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
            await box.until(lambda: "UNAVAILABLE" in told())
            assert not box.is_up
            async with far_server(gone.port):
                await box.until(lambda: box.is_up, 30)
                await box.ask()

    asyncio.run(run())


def test_the_log_says_once_why_a_server_that_stays_away_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        async with far_server() as far:
            gone = far.url
        waits: list[str] = []
        wait = CloudLink._wait_to_retry

        async def counted(link: CloudLink, reason: str) -> None:
            waits.append(reason)
            await wait(link, reason)

        monkeypatch.setattr(CloudLink, "_wait_to_retry", counted)
        with structlog.testing.capture_logs() as logs:
            async with box_of(gone, tmp_path) as box:
                await box.until(lambda: len(waits) >= 4)
        told = [line["reason"] for line in logs if line["event"] == "cloud not used"]
        assert told == list(dict.fromkeys(waits))

    asyncio.run(run())


async def spend_all(url: str, folder: Path, requests: int, **settings: Any) -> tuple[int, float]:
    """How many of so many requests were served, and what is said to be spent."""
    async with box_of(url, folder, expected_ms=1, **settings) as box:
        await box.until(lambda: box.is_up)
        answers = await asyncio.gather(*[box.ask(deadline_ms=700) for _ in range(requests)])
        served = sum(answer.outcome is Outcome.COMPLETED for answer in answers)
        return served, float(box.link.describe()["spending"]["spent"])


def test_a_budget_is_never_exceeded_and_a_restart_brings_no_new_one(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            budget = {"cost_per_request": 0.01, "budget_per_hour": 0.3}
            served, spent = await spend_all(far.url, tmp_path, 60, **budget)
            items = sum(request.inputs[0].shape[0] for request in far.asked)
            assert served <= items <= 30
            assert items > 0
            # A batch that was given up before it arrived is paid for all the same.
            assert 0.01 * items - 1e-9 <= spent <= 0.3 + 1e-9
            await spend_all(far.url, tmp_path, 60, **budget)
            assert sum(request.inputs[0].shape[0] for request in far.asked) <= 30

    asyncio.run(run())


def test_seconds_that_cost_are_reserved_before_and_settled_after(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            budget = {"cost_per_s": 1.0, "budget_per_day": 3.0}
            served, spent = await spend_all(far.url, tmp_path, 4, **budget)
            assert served >= 1
            assert 0 < spent < 3.0

    asyncio.run(run())


@pytest.mark.parametrize(("requests", "deadline_ms"), [(8, 10_000), (3, 200_000)])
def test_what_is_reserved_for_long_deadlines_keeps_the_rest_waiting_only_until_it_is_settled(
    requests: int, deadline_ms: float, tmp_path: Path
):
    async def slowly(request: Any, context: Any) -> Any:
        await asyncio.sleep(0.05)
        return await good(request, context)

    async def run() -> None:
        money = {"cost_per_s": 0.1, "budget_per_hour": 5.0, "timeout_s": 20.0}
        async with far_server() as far:
            far.behaviour = slowly
            async with box_of(far.url, tmp_path, expected_ms=50, max_batch=1, **money) as box:
                await box.until(lambda: box.is_up)
                asked = [box.ask(deadline_ms=deadline_ms) for _ in range(requests)]
                answers = await asyncio.gather(*asked)
                assert {answer.outcome for answer in answers} == {Outcome.COMPLETED}
                assert box.link.describe()["spending"]["spent"] < 0.2

    asyncio.run(run())


def test_what_was_learned_is_there_after_a_restart_without_paying_for_it(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path, cost_per_request=1.0) as box:
            await box.until(lambda: box.is_up)
            trials = len(far.asked)
            assert trials > 0
            assert box.link.describe()["spending"]["spent"] == trials
            async with box_of(far.url, tmp_path, cost_per_request=1.0) as box:
                await box.until(lambda: box.is_up)
                assert len(far.asked) == trials

    asyncio.run(run())

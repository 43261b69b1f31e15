"""What can't be paid keeps back what costs as much, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from scheduler.config.cloud import CloudConfig
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.cloud.batch import SentBatch
from scheduler.daemon.cloud.standing import Standing
from scheduler.daemon.cloud.tensors import CloudModel
from scheduler.daemon.cloud.till import AGAIN_NS, Till
from scheduler.daemon.ways.purse import Purse
from tests.daemon.cloud.boxes import CARD, Box, box_of, numbers
from tests.daemon.cloud.far_server import Behaviour, FarServer, far_server

SLOW = replace(CARD, name="slow")
MS = 1_000_000
S = 1_000 * MS


def remember(folder: Path, url: str, **latencies_ms: dict[int, int]) -> None:
    """What a box had learned of the cloud before it was started."""
    models = {
        model: {size: [ms * MS] * 3 for size, ms in sizes.items()}
        for model, sizes in latencies_ms.items()
    }
    file = folder / "cloud" / "far-latency.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"url": url, "models": models}))


def test_a_batch_that_costs_more_than_the_budget_is_sent_in_parts(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            remember(tmp_path, far.url, double={1: 5, 2: 5, 4: 5, 8: 5})
            money = {"cost_per_request": 1.0, "budget_per_day": 6.0, "max_concurrency": 1}
            async with box_of(far.url, tmp_path, **money) as box:
                await box.until(lambda: box.is_up)
                answers = await asyncio.gather(*[box.ask(deadline_ms=20_000) for _ in range(8)])
                served = sum(answer.outcome is Outcome.COMPLETED for answer in answers)
                assert served == 6, "all that the budget allows"
                assert box.link.describe()["spending"]["spent"] == 6.0

    asyncio.run(run())


def test_no_figure_of_status_has_digits_that_mean_nothing(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            money = {"cost_per_request": 0.1, "cost_per_s": 1 / 3, "budget_per_day": 1e6}
            async with box_of(far.url, tmp_path, **money) as box:
                await box.until(lambda: box.is_up)
                for value in range(8):
                    await box.ask(float(value), deadline_ms=20_000)
                described = box.driver.status()
                assert described["targets"][0]["spending"]["spent"] > 0.3
                described["targets"][0].pop("costs")  # as they stand in the configuration
                long = re.findall(r"[\d.]{12,}", json.dumps(described))
                assert [figure for figure in long if "." in figure] == []

    asyncio.run(run())


def test_a_model_that_costs_more_than_the_budget_leaves_the_others_theirs(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            far.names = {"double", "slow"}
            remember(tmp_path, far.url, double={1: 5}, slow={1: 8_000})
            money = {"cost_per_s": 1.0, "budget_per_day": 5.0}
            async with box_of(far.url, tmp_path, CARD, SLOW, **money) as box:
                await box.until(lambda: box.is_up)
                for _ in range(2):
                    refused = await box.ask(deadline_ms=20_000, model="slow")
                    assert refused.outcome is Outcome.UNAVAILABLE
                    assert "expensive for model 'slow'" in refused.reason
                    assert numbers(await box.ask(2.0)) == [4.0] * 4
                (told,) = box.link.describe()["spending"]["too_dear"]
                assert told == {"model": "slow", "shapes": ((4,),)}

    asyncio.run(run())


class Clock:
    """Of the wall, in seconds; the monotonic one goes with it."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s

    def ns(self) -> int:
        return int(self.now_s) * S


@pytest.fixture
def clock() -> Clock:
    return Clock()


def till_of(folder: Path, clock: Clock, **money: float) -> Till:
    config = CloudConfig.model_validate({"name": "far", "url": "grpc://far.example", **money})
    return Till(config, Purse(config.budgets, folder / "spent.json", clock), clock.ns)


def kind(model: str) -> RequestClass:
    return RequestClass(model, None, ((4,),))


def test_a_batch_keeps_back_batches_as_large_until_so_much_can_be_paid(tmp_path: Path, clock):
    till = till_of(tmp_path, clock, cost_per_request=1.0, budget_per_hour=10.0)
    assert till.pay(7, 0.0)
    assert not till.pay(4, 0.0)
    till.keep_back(kind("m"), 4, 0.0, None)
    assert (till.most("m"), till.closed_until_ns > clock.ns(), till.moved()) == (3, False, False)
    assert till.most("other") > 4
    clock.now_s += 3_700
    assert till.moved()
    assert till.most("m") > 4


def test_it_is_closed_while_nothing_at_all_can_be_paid(tmp_path: Path, clock):
    till = till_of(tmp_path, clock, cost_per_request=1.0, budget_per_hour=3.0)
    assert till.pay(3, 0.0)
    assert not till.pay(2, 0.0)
    till.keep_back(kind("m"), 2, 0.0, None)
    assert (till.too_dear, till.closed_until_ns > clock.ns()) == ((), True)
    assert 3_500 < till.describe()["closed_s"] <= 3_700
    opened: list[bool] = []
    till.on_open = lambda: opened.append(True)
    till.give_back(3, 0.0, 0)
    assert (opened, till.closed_until_ns > clock.ns()) == ([True], False)
    assert till.describe()["closed_s"] == 0


@pytest.mark.parametrize(("settled_ns", "waits"), [(1 * S, True), (None, False)])
def test_what_others_may_bring_back_is_waited_for_and_what_is_never_there_is_not(
    settled_ns: int | None, waits: bool, tmp_path: Path, clock
):
    till = till_of(tmp_path, clock, cost_per_s=1.0, budget_per_hour=3.0)
    assert till.pay(1, 2.5)
    till.keep_back(kind("m"), 1, 1.0, settled_ns)
    assert (till.closed_until_ns > clock.ns()) is waits
    assert till.too_dear == (() if waits else (("m", ((4,),)),))
    till.keep_back(kind("dear"), 1, 4.0, settled_ns)
    assert ("dear", ((4,),)) in till.too_dear


def test_what_is_too_dear_for_any_budget_is_tried_again_after_a_while(tmp_path: Path, clock):
    """It may take less time there by then."""
    till = till_of(tmp_path, clock, cost_per_s=1.0, budget_per_hour=3.0)
    till.keep_back(kind("m"), 1, 5.0, None)
    assert not till.moved()
    clock.now_s += AGAIN_NS / S
    assert till.moved()
    assert till.too_dear == ()


@asynccontextmanager
async def priced_box(folder: Path, **money: float) -> AsyncIterator[tuple[FarServer, Box]]:
    """A server whose latency is known, and a box that pays for it."""
    async with far_server() as far:
        remember(folder, far.url, double={1: 5})
        async with box_of(far.url, folder, **money) as box:
            await box.until(lambda: box.is_up)
            yield far, box


async def fails(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.INTERNAL, "out of memory")


async def answers_nonsense(request: Any, context: Any) -> Any:
    return pb.ModelInferResponse(model_name=request.model_name)


@pytest.mark.parametrize("behaviour", [fails, answers_nonsense])
def test_a_batch_that_failed_costs_the_time_until_it_did(tmp_path: Path, behaviour: Behaviour):
    """It was over with the answer, and not at the deadline."""

    async def run() -> None:
        async with priced_box(tmp_path, cost_per_s=1.0, budget_per_day=100.0) as (far, box):
            far.behaviour = behaviour
            assert (await box.ask(deadline_ms=20_000)).outcome is Outcome.FAILED
            assert 0 < box.link.describe()["spending"]["spent"] < 20

    asyncio.run(run())


def test_a_batch_that_never_went_is_told_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        async with priced_box(tmp_path, cost_per_request=1.0, budget_per_day=1.0) as (far, box):
            monkeypatch.setattr(Standing, "tell", broken)  # as it tells that all is spent
            answer = await box.ask(deadline_ms=20_000)
            assert (answer.outcome, far.asked) == (Outcome.FAILED, [])
            assert box.link.describe()["spending"]["spent"] == 0

    def broken(standing: Standing) -> None:
        raise RuntimeError("no")

    asyncio.run(run())


def test_a_batch_that_is_taken_back_before_it_goes_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        shrinking = asyncio.Event()

        async def shrink(batch: SentBatch, model: CloudModel) -> None:
            shrinking.set()
            await asyncio.Event().wait()

        async with priced_box(tmp_path, cost_per_request=1.0, budget_per_day=10.0) as (far, box):
            monkeypatch.setattr(SentBatch, "shrink", shrink)
            request_id, future = box.post(deadline_ms=20_000)
            await shrinking.wait()
            assert box.link.describe()["spending"]["spent"] == 1
            box.driver.cancel(request_id)
            assert (await future).outcome is Outcome.CANCELLED
            await box.until(lambda: box.link.describe()["spending"]["spent"] == 0, 2)
            assert far.asked == []

    asyncio.run(run())


def test_a_batch_that_is_too_late_before_it_goes_is_not_sent_and_costs_nothing(tmp_path: Path):
    async def run() -> None:
        async with priced_box(tmp_path, cost_per_request=1.0, budget_per_day=1.0) as (far, box):
            _, future = box.post(deadline_ms=300)
            time.sleep(0.4)  # this process is held up
            assert (await future).outcome is Outcome.EXPIRED
            await box.until(lambda: box.link.describe()["spending"]["spent"] == 0, 2)
            assert far.asked == []

    asyncio.run(run())

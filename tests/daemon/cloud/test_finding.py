"""Which models of a server are taken for those of the box."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.cloud.endpoint import RemoteModel, RemoteTensor
from scheduler.daemon.cloud.tensors import agreed
from scheduler.daemon.doubts import IDLE_NS, Doubts
from tests.daemon.cloud.boxes import CARD, Box, box_of, numbers
from tests.daemon.cloud.far_server import far_server, good


def remote(shape: tuple[int, ...], datatype: str = "FP32", *versions: str) -> RemoteModel:
    tensors = [(RemoteTensor(name, datatype, shape),) for name in "xy"]
    return RemoteModel("there", versions, *tensors)


def test_a_variant_of_the_box_that_the_server_names_is_asked_for_by_name():
    card = replace(CARD, variants=("fp32", "int8"))
    model = agreed(card, remote((-1, 4), "FP32", "int8", "fp32"), 4)
    assert (model.variant, model.version, model.max_batch) == ("fp32", "fp32", 4)


def test_versions_of_another_kind_are_left_to_the_server():
    model = agreed(CARD, remote((-1, 4), "FP32", "1", "3"), 64)
    assert (model.variant, model.version, model.max_batch) == ("3", "", 8)
    assert agreed(CARD, remote((-1, -1)), 64).variant == "remote"


def test_a_batch_that_is_fixed_to_one_takes_one_item():
    assert agreed(CARD, remote((1, 4)), 8).max_batch == 1


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (remote((-1, 5)), "items of \\[5\\] there and \\[4\\] here"),
        (remote((-1, 4), "FP16"), "'x' is FP16 there and FP32 here"),
        (remote((3, 4)), "without a free batch"),
        (remote((-1, 4, 1)), "items of"),
        (remote(()), "without a free batch"),
        (replace(remote((-1, 4)), inputs=()), "it takes nothing there"),
        (replace(remote((-1, 4)), outputs=()), "it has no tensor 'y' there"),
    ],
)
def test_another_model_of_the_same_name_is_not_used(there: RemoteModel, said: str):
    with pytest.raises(ValueError, match=said):
        agreed(CARD, there, 8)


def test_a_free_size_of_the_box_has_to_be_free_there():
    free = TensorSpec("x", "float32", (None,))
    card = replace(CARD, signature=Signature((free,), (replace(free, name="y"),), True))
    assert agreed(card, remote((-1, -1)), 8).max_batch == 8
    with pytest.raises(ValueError, match="items of"):
        agreed(card, remote((-1, 4)), 8)


def start(folder: Path, prepare: Any, **settings: Any) -> tuple[dict[str, Any], list[Any]]:
    """What `status` and the catalog say of a server that was prepared so."""

    async def run() -> tuple[dict[str, Any], list[Any]]:
        async with far_server() as far:
            prepare(far)
            async with box_of(far.url, folder, **settings) as box:
                progress = lambda: box.driver.status()["targets"][0]["progress"]  # noqa: E731
                texts = ("starting", "looking at the server")
                await box.until(lambda: progress()["text"] not in texts)
                return progress(), box.driver.catalog.problems.get("far", [])

    return asyncio.run(run())


def test_a_server_without_any_model_of_the_box_is_said_and_not_used(tmp_path: Path):
    progress, _ = start(tmp_path, lambda far: setattr(far, "shape", [-1, 7]))
    assert "runs none of the box's models" in progress["text"]
    assert "items of [7] there and [4] here" in progress["text"]


def test_a_model_that_is_listed_and_is_none_of_the_box_is_a_problem(tmp_path: Path):
    progress, problems = start(tmp_path, lambda far: None, models=["double", "tripple"])
    assert progress["text"] == "ready"
    assert problems == [("tripple", "the box has no model of that name")]


def test_a_model_goes_by_its_name_there(tmp_path: Path):
    async def run() -> None:
        card, models = replace(CARD, name="twice"), {"twice": "double"}
        async with far_server() as far, box_of(far.url, tmp_path, card, models=models) as box:
            await box.until(lambda: box.is_up)
            assert numbers(await box.ask(3.0, model="twice")) == [6.0] * 4
            assert {request.model_name for request in far.asked} == {"double"}

    asyncio.run(run())


def test_models_that_come_later_are_found(tmp_path: Path):
    async def run() -> None:
        later = replace(CARD, name="later")
        async with far_server() as far, box_of(far.url, tmp_path, CARD, later) as box:
            await box.until(lambda: box.is_up)
            assert (await box.ask(2.0, model="later")).outcome is Outcome.UNAVAILABLE
            far.names.add("later")
            await box.until(lambda: ("far", "later", "1") in box.driver.catalog.offers)
            assert numbers(await box.ask(2.0, 20_000, model="later")) == [4.0] * 4
            assert numbers(await box.ask(1.0, 20_000)) == [2.0] * 4

    asyncio.run(run())


def test_a_model_that_comes_while_the_server_is_looked_at_does_no_harm(tmp_path: Path):
    async def run() -> None:
        measured = asyncio.Event()

        async def slow(request: Any, context: Any) -> Any:
            await measured.wait()
            return await good(request, context)

        async with far_server() as far:
            far.behaviour = slow
            async with box_of(far.url, tmp_path) as box:
                await box.until(lambda: far.asked)
                with capture_logs() as logs:
                    box.driver.catalog.learn("cpu:1", [replace(CARD, name="later")], [])
                    measured.set()
                    await box.until(lambda: box.is_up)
                assert [each for each in logs if each["log_level"] == "error"] == []

    asyncio.run(run())


def test_why_a_model_that_comes_later_is_not_used_is_said(tmp_path: Path):
    async def run() -> None:
        async with (
            far_server() as far,
            box_of(far.url, tmp_path, models=["double", "later"]) as box,
        ):
            await box.until(lambda: box.is_up)
            problems = box.driver.catalog.problems
            assert problems["far"] == [("later", "the box has no model of that name")]
            box.driver.catalog.learn("cpu:1", [replace(CARD, name="later")], [])
            await box.until(lambda: "no such model" in str(problems["far"]))
            far.names.add("later")
            await box.until(lambda: problems["far"] == [])

    asyncio.run(run())


def test_a_model_whose_tensors_change_on_the_box_is_matched_again(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path) as box:
            await box.until(lambda: box.is_up)
            far.shape = [-1, 8]
            x, y = [(TensorSpec(name, "float32", (8,)),) for name in "xy"]
            changed = replace(CARD, signature=Signature(x, y, True))
            box.driver.catalog.learn("cpu:0", [changed], [])
            eight = np.ones(8, np.float32)
            assert numbers(await box.ask(eight, 20_000)) == [2.0] * 8
            assert box.breaker == "closed"

    asyncio.run(run())


async def picky(request: Any, context: Any) -> Any:
    if request.model_name == "picky":
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "zeros make no sense")
    return await good(request, context)


def test_a_model_that_can_not_be_measured_leaves_the_others_as_they_are(tmp_path: Path):
    async def run() -> None:
        other = replace(CARD, name="picky")
        async with far_server() as far:
            far.behaviour = picky
            far.names.add("picky")
            async with box_of(far.url, tmp_path, other, CARD) as box:
                await box.until(lambda: box.is_up)
                assert [request.model_name for request in far.asked] == ["picky"] + 4 * ["double"]
                [(model, reason)] = box.driver.catalog.problems["far"]
                assert model == "picky"
                assert "zeros make no sense" in reason
                far.behaviour = good
                await box.until(lambda: ("far", "picky", "1") in box.driver.catalog.offers)
                assert box.driver.catalog.problems["far"] == []

    asyncio.run(run())


def test_a_model_that_is_described_and_not_served_is_not_asked_for_without_end(tmp_path: Path):
    async def half(request: Any, context: Any) -> Any:
        if request.model_name == "half":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        return await good(request, context)

    async def run() -> None:
        other = replace(CARD, name="half")
        async with far_server() as far:
            far.names.add("half")
            async with box_of(far.url, tmp_path, CARD, other) as box:
                await box.until(lambda: box.is_up)
                far.behaviour, measured = half, len(far.asked)
                box.post(1.0, 20_000, model="half")
                await box.until(lambda: box.driver.catalog.problems["far"])
                await box.until(lambda: box.is_up)
                assert numbers(await box.ask(3.0)) == [6.0] * 4
                assert len(far.asked) <= measured + 5
                far.behaviour = good

    asyncio.run(run())


def test_a_model_that_was_served_and_is_gone_for_a_moment_is_not_paid_for_again(tmp_path: Path):
    async def gone(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")

    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path) as box:
            await box.until(lambda: box.is_up)
            assert numbers(await box.ask(2.0)) == [4.0] * 4
            measured, far.behaviour = len(far.asked), gone
            far.names.clear()
            _, answer = box.post(3.0, 20_000)
            await box.until(lambda: not box.is_up)
            far.behaviour = good
            far.names.add("double")
            assert numbers(await answer) == [6.0] * 4
            assert len(far.asked) == measured + 2

    asyncio.run(run())


@pytest.mark.parametrize(("status", "spent"), [("RESOURCE_EXHAUSTED", 0.0), ("INTERNAL", 1.0)])
def test_trials_cost_what_batches_do(status: str, spent: float, tmp_path: Path):
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode[status], "not now")

    async def run() -> None:
        async with far_server() as far:
            far.behaviour = refuse
            async with box_of(far.url, tmp_path, cost_per_request=1.0, budget_per_day=9.0) as box:
                await box.until(lambda: len(far.asked) > 1)
                # What is on its way is paid already, and comes back with the refusal.
                await box.until(
                    lambda: box.link.describe()["spending"]["spent"] <= len(far.asked) * spent
                )

    asyncio.run(run())


async def slowly(request: Any, context: Any) -> Any:
    await asyncio.sleep(1.0)
    return await good(request, context)


def is_measured(box: Box) -> bool:
    measuring = box.link._measuring
    return measuring is not None and measuring.done()


def test_a_server_that_was_slow_when_it_was_measured_is_measured_again(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            far.behaviour = slowly
            async with box_of(far.url, tmp_path) as box:
                await box.until(lambda: box.is_up)
                measured = len(far.asked)
                assert (await box.ask(deadline_ms=500)).outcome is Outcome.INFEASIBLE
                await asyncio.sleep(IDLE_NS / 1e9)
                assert (await box.ask(deadline_ms=500)).outcome is Outcome.INFEASIBLE
                await box.until(lambda: len(far.asked) == measured + 1)
                await box.until(lambda: is_measured(box))
                assert (await box.ask(deadline_ms=500)).outcome is Outcome.INFEASIBLE
                assert len(far.asked) == measured + 1, "it is slow, and that was asked but now"
                far.behaviour = good
                box.driver._doubts = Doubts()
                assert (await box.ask(deadline_ms=500)).outcome is Outcome.INFEASIBLE
                await box.until(lambda: len(far.asked) >= measured + 4)
                await box.until(lambda: is_measured(box))
                assert numbers(await box.ask(3.0, deadline_ms=900)) == [6.0] * 4

    asyncio.run(run())


def test_a_server_that_is_measured_again_is_paid(tmp_path: Path):
    async def run() -> None:
        async with far_server() as far:
            far.behaviour = slowly
            settings = {"cost_per_request": 1.0, "budget_per_day": 4.0}
            async with box_of(far.url, tmp_path, **settings) as box:
                await box.until(lambda: box.is_up)
                await asyncio.sleep(IDLE_NS / 1e9)
                assert (await box.ask(deadline_ms=500)).outcome is Outcome.INFEASIBLE
                await asyncio.sleep(0.2)
                assert len(far.asked) == 4, "there was money for no more"

    asyncio.run(run())

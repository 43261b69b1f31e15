"""Requests at the native door that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.submission import Submission
from scheduler.ingress.turns import TURN_MESSAGES
from scheduler.wire import encode
from tests.ingress.test_native_door import Box, RawClient, a_box, run, until

INFER = {"t": "infer", "model": "line-a", "budget_ns": 10**11, "in": [["x", "float32", [4]]]}


class Endless:
    """A device that takes one batch and never ends it."""

    async def keep_connected(self) -> None:
        await asyncio.Event().wait()

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        pass

    def cancel(self, run_id: int) -> None:
        pass

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        pass

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}


@asynccontextmanager
async def a_busy_box(folder: Path) -> AsyncIterator[Box]:
    async with a_box(folder) as box:
        driver = box.door.driver
        driver.add_target("cpu:0", Endless())
        offer = Offer("line-a", "v", "made-up", {1: (1_000_000,) * 3})
        driver.on_up(TargetSpec("cpu:0", (offer,)))
        yield box


def test_a_request_that_is_given_up_with_the_same_write_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_busy_box(tmp_path) as box:
            client = await RawClient.of(tmp_path, "line")
            kept, given_up, other = (encode({**INFER, "id": n}, [bytes(16)]) for n in range(3))
            cancel = encode({"t": "cancel", "id": 1})
            client.writer.writelines([*kept, *given_up, *cancel, *other])
            told = await client.told()
            assert (told["t"], told["id"], told["code"]) == ("error", 1, "cancelled")
            await until(lambda: len(box.door.driver.core.ledger.records) == 2)
            client.writer.close()
            await until(lambda: not box.door.driver.core.ledger.records)

    run(test)


def test_a_client_that_goes_with_much_under_way_lets_others_have_their_turn(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with a_busy_box(tmp_path) as box:
            held = box.door.driver.core.ledger.records
            client = await RawClient.of(tmp_path, "line")
            for number in range(1_000):
                client.writer.writelines(encode({**INFER, "id": number}, [bytes(16)]))
            await until(lambda: len(held) == 1_000)
            client.writer.close()
            while held:
                before = len(held)
                await asyncio.sleep(0)
                assert before - len(held) <= 2 * TURN_MESSAGES, "two of its turns, seen as one"
            assert box.door.admission.quotas.held() == {"line": 0}

    run(test)

"""Inputs over a slow link, to a cloud and to a neighbour: as they are, smaller, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.core.outcomes import Outcome
from tests.daemon.shrunk_boxes import (
    BOTH,
    FLOAT16,
    FOR_HALF_MS,
    FOR_JPEG_MS,
    JPEG,
    PHOTO,
    SHAPE,
    Pair,
    card,
    cloud_pair,
    mean_of,
    site_pair,
)
from workers.link import ModelCard
from workers.model import InputForms

WAYS = ["grpc", "http", "site"]


def over(
    way: str, folder: Path, near: ModelCard, far: ModelCard | None = None
) -> AbstractAsyncContextManager[Pair]:
    there = near if far is None else far
    return site_pair(near, there) if way == "site" else cloud_pair(way, folder, near, there)


def off(given: NDArray[np.float32]) -> float:
    """How far the farthest value is from what the caller sent; checks that it is an image."""
    assert given.dtype == np.float32
    assert given.shape == SHAPE
    return float(abs(given - PHOTO).max())


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 100))


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_as_small_as_a_deadline_needs_and_the_answer_says_so(way: str, tmp_path: Path):
    async def work() -> None:
        async with over(way, tmp_path, card()) as pair:
            calm = await pair.ask()
            assert calm.outcome is Outcome.COMPLETED
            assert calm.notes == {}
            assert off(pair.device.given[-1]) == 0
            await pair.settle()
            await pair.ask_until_sent_as("float16", FOR_HALF_MS)
            assert 0 < off(pair.device.given[-1]) <= 2.0**-11
            small = await pair.ask_until_sent_as("jpeg", FOR_JPEG_MS)
            assert 2.0**-11 < off(pair.device.given[-1]) < 0.3
            assert np.max(abs(mean_of(small) - mean_of(calm))) < 0.02
            exact = await pair.ask(deadline_ms=FOR_JPEG_MS, exact=True)
            assert exact.outcome in (Outcome.INFEASIBLE, Outcome.EXPIRED)
            told = {each["form"]: each for each in pair.target["shrunk"]}
            assert told["image as float16"]["batches"] >= 1
            assert 0.49 < told["image as float16"]["share"] < 0.52
            assert 0 < told["image as jpeg"]["share"] < 0.2
            assert told["image as jpeg"]["ns_per_byte"] > 0

    run(work)


@pytest.mark.parametrize("way", ["http"])
def test_what_does_not_fit_into_a_form_goes_as_it_is_and_is_counted(way: str, tmp_path: Path):
    async def work() -> None:
        async with over(way, tmp_path, card((InputForms("image", (JPEG,)),))) as pair:
            await pair.settle()
            answer = await pair.ask(2 * PHOTO + 1, FOR_JPEG_MS)
            assert answer.notes == {}
            [told] = pair.target["shrunk"]
            assert told["unfit"] == 1
            assert told["batches"] == 0

    run(work)


@pytest.mark.parametrize("way", ["grpc"])
def test_a_model_whose_owner_says_nothing_is_never_made_smaller(way: str, tmp_path: Path):
    async def work() -> None:
        async with over(way, tmp_path, card(()), card(BOTH)) as pair:
            await pair.settle()
            answer = await pair.ask(deadline_ms=FOR_JPEG_MS)
            assert answer.outcome in (Outcome.INFEASIBLE, Outcome.EXPIRED)
            assert pair.target["shrunk"] == []

    run(work)


@pytest.mark.parametrize("way", ["http", "site"])
def test_what_is_exact_here_is_exact_there(way: str, tmp_path: Path):
    async def work() -> None:
        async with over(way, tmp_path, card()) as pair:
            for exact in (True, False):
                assert (await pair.ask(exact=exact)).outcome is Outcome.COMPLETED
            assert [kind.exact for kind in pair.device.kinds] == [True, False]

    run(work)


def test_the_far_end_needs_not_to_allow_what_it_undoes(tmp_path: Path):
    async def work() -> None:
        async with site_pair(card((InputForms("image", (FLOAT16,)),)), card(())) as pair:
            await pair.settle()
            await pair.ask_until_sent_as("float16", FOR_HALF_MS)

    run(work)


def test_a_model_that_only_a_neighbour_has_travels_as_that_one_allows(tmp_path: Path):
    async def work() -> None:
        async with site_pair(None, card()) as pair:
            await pair.settle()
            await pair.ask_until_sent_as("jpeg", FOR_JPEG_MS)

    run(work)


def test_a_box_without_pillow_is_sent_no_jpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scheduler.encodings.jpeg.is_available", lambda: False)

    async def work() -> None:
        async with site_pair(card(), card()) as pair:
            await pair.ask()
            assert [each["form"] for each in pair.target["shrunk"]] == ["image as float16"]

    run(work)


def test_who_cancels_while_inputs_are_made_smaller_is_answered(tmp_path: Path):
    async def work() -> None:
        async with site_pair(card(), card()) as pair:
            await pair.settle()
            asked = asyncio.ensure_future(pair.ask(deadline_ms=FOR_JPEG_MS))
            await asyncio.sleep(0)
            [request_id] = list(pair.near.core.ledger.records)
            pair.near.cancel(request_id)
            assert (await asked).outcome is Outcome.CANCELLED
            for _ in range(1_000):
                if not pair.near.core.runs:
                    break
                await asyncio.sleep(0.01)
            assert not pair.near.core.runs
            assert (await pair.ask()).outcome is Outcome.COMPLETED

    run(work)


def test_an_answer_counts_though_the_owner_no_longer_allows_what_it_was_sent_as(tmp_path: Path):
    note = {"shrunk": "image as float16 for far"}

    async def work() -> None:
        async with site_pair(card(), card()) as pair:
            await pair.settle()
            for _ in range(20):
                pair.near.catalog.learn("cpu:0", [card()], [])
                await pair.ask_until_sent_as("float16", FOR_HALF_MS)
                asked = asyncio.ensure_future(pair.ask(deadline_ms=FOR_HALF_MS))
                await asyncio.sleep(0.1)
                assert pair.target["shrunk"]
                pair.near.catalog.learn("cpu:0", [card(())], [])
                while pair.target["shrunk"]:  # the next report brings it
                    await asyncio.sleep(0.01)
                answer = await asked
                if answer.notes == note:  # else it came too late, or the link looked different
                    break
            assert answer.notes == note
            assert pair.target["up"]

    run(work)

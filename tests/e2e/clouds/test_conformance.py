"""What holds for every server that a box has as a target, whoever wrote it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature
from scheduler.daemon.submission import Answer
from scheduler.tenants import new_token
from scheduler.wire import unpack_tensors
from tests.daemon.cloud.boxes import Box, box_of
from tests.e2e.clouds.models import CARDS, MAX_BATCH
from tests.e2e.clouds.servers import KINDS, Server, triton_with_tls
from tests.e2e.clouds.tap import REFUSALS, Tap, tapped
from workers.link import ModelCard

SECONDS = 60.0
LONG_MS = 60_000.0
IMAGES = np.linspace(0, 1, 40 * 64, dtype=np.float32).reshape(40, 1, 8, 8)
SLOW = {"x": np.zeros((1, 1), np.float32)}


@pytest.fixture(scope="module", params=list(KINDS))
def server(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server: Server = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["grpc", "http"])
def url(request: Any, server: Server) -> str:
    return server.url(request.param)


@asynccontextmanager
async def using(
    server: Server, url: str, folder: Path, *models: str | ModelCard, **settings: Any
) -> AsyncIterator[Box]:
    """A box that has the server as its only target, once it is up."""
    cards = [CARDS[each] if isinstance(each, str) else each for each in models]
    known = {"token_file": server.token, "timeout_s": 20.0, "max_batch": MAX_BATCH, **settings}
    async with box_of(url, folder, *cards, **known) as box:
        await box.until(lambda: box.is_up, SECONDS)
        yield box


def through_tap(
    server: Server,
    url: str,
    folder: Path,
    test: Callable[[Box, Tap], Awaitable[None]],
    *models: str,
    **settings: Any,
) -> None:
    async def run() -> None:
        async with tapped(url) as tap, using(server, tap.url, folder, *models, **settings) as box:
            await test(box, tap)

    asyncio.run(run())


async def all_of(box: Box, model: str, asked: list[dict[str, Any]], ms: float) -> list[Answer]:
    return await asyncio.gather(*[box.submit(model, inputs, ms)[1] for inputs in asked])


async def digits(box: Box, ms: float = LONG_MS) -> list[Answer]:
    return await all_of(box, "digits", [{"image": image} for image in IMAGES], ms)


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.outcome is Outcome.COMPLETED, answer
    assert answer.outputs is not None
    return unpack_tensors(*answer.outputs)


def scores_of(images: Any) -> Any:
    path = str(Path(__file__).parents[3] / "configs/models/digits/small.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"image": images})[0]


async def is_whole_again(box: Box) -> None:
    """It serves, and nothing of what was before holds it back."""
    [answer] = await all_of(box, "digits", [{"image": IMAGES[0]}], LONG_MS)
    assert outputs(answer)["scores"].shape == (10,)
    await box.until(lambda: box.breaker == "closed", SECONDS)


def test_models_are_matched_by_name_and_signature(server: Server, url: str, tmp_path: Path):
    pair = CARDS["pair"].signature
    other = tuple(replace(spec, shape=(4,)) for spec in pair.inputs)
    wrong = replace(CARDS["pair"], signature=Signature(other, pair.outputs, True))
    nowhere = replace(CARDS["slow"], name="nowhere")

    async def run() -> None:
        async with using(server, url, tmp_path, "digits", wrong, nowhere) as box:
            [[name, reason]] = box.driver.catalog.problems["far"]
            assert name == "pair"
            assert "items of [3] there and [4] here" in reason
            offers = box.driver.core.targets["far"].spec.offers
            assert [(offer.model, offer.variant) for offer in offers] == [
                ("digits", server.variant)
            ]

    asyncio.run(run())


def test_answers_are_those_of_the_model_item_by_item(server: Server, url: str, tmp_path: Path):
    async def test(box: Box, tap: Tap) -> None:
        for _ in range(3):
            found = [outputs(answer)["scores"] for answer in await digits(box)]
            np.testing.assert_allclose(found, scores_of(IMAGES), rtol=1e-4, atol=1e-5)
        assert max(call.items for call in tap.of("digits")) > 1, "batches grow"
        numbers = np.arange(60, dtype=np.float32).reshape(20, 3)
        asked = [{"a": row, "b": row[::-1].copy()} for row in numbers]
        for row, answer in zip(numbers, await all_of(box, "pair", asked, LONG_MS), strict=True):
            both = outputs(answer)
            assert both["sum"].tolist() == (row + row[::-1]).tolist()
            assert both["difference"].tolist() == (row - row[::-1]).tolist()

    through_tap(server, url, tmp_path, test, "digits", "pair")


def test_text_goes_there_and_comes_back(server: Server, url: str, tmp_path: Path):
    texts = [["eins", "x" * length, "größer"[: length % 7]] for length in range(1, 20)]

    async def test(box: Box, tap: Tap) -> None:
        asked = [{"text": np.array(each)} for each in texts]
        for each, answer in zip(texts, await all_of(box, "words", asked, LONG_MS), strict=True):
            found = outputs(answer)
            assert [text.decode() for text in found["same"].tolist()] == each
            assert found["code"].tolist() == [1, 0, 0]
        assert max(call.items for call in tap.of("words")) > 1, "batches grow"

    through_tap(server, url, tmp_path, test, "words")


def test_what_is_left_of_a_deadline_goes_along(server: Server, url: str, tmp_path: Path):
    async def test(box: Box, tap: Tap) -> None:
        [answer] = await all_of(box, "digits", [{"image": IMAGES[0]}], 9_000)
        assert answer.outcome is Outcome.COMPLETED
        call = tap.of("digits")[-1]
        assert 0 < call.timeout_us < 9_000_000
        assert 0 < call.left_s < 9.1  # gRPC rounds it
        hopeless = await all_of(box, "digits", [{"image": IMAGES[0]}], 0.01)
        assert hopeless[0].outcome in (Outcome.INFEASIBLE, Outcome.EXPIRED)
        assert box.breaker == "closed"

    through_tap(server, url, tmp_path, test, "digits")


def test_deadlines_that_pass_there_do_no_lasting_harm(server: Server, url: str, tmp_path: Path):
    async def run() -> None:
        async with using(server, url, tmp_path, "digits", "slow") as box:
            answers = await all_of(box, "slow", [SLOW] * 24, 250)
            ends = {Outcome.COMPLETED, Outcome.EXPIRED, Outcome.INFEASIBLE, Outcome.UNAVAILABLE}
            assert {answer.outcome for answer in answers} <= ends
            await is_whole_again(box)

    asyncio.run(run())


def test_a_cancelled_request_is_cancelled_there(server: Server, url: str, tmp_path: Path):
    async def test(box: Box, tap: Tap) -> None:
        def gone() -> bool:
            return any(call.status == "gone" for call in tap.of("slow"))

        def more_than(seen: int) -> bool:
            return len(tap.of("slow")) > seen

        while not gone():  # one that was nearly done is done before that
            seen = len(tap.of("slow"))
            posted = [box.submit("slow", SLOW, LONG_MS) for _ in range(8)]
            await box.until(partial(more_than, seen), SECONDS)
            for request_id, _ in posted:
                box.driver.cancel(request_id)
            ends = {(await future).outcome for _, future in posted}
            assert Outcome.CANCELLED in ends
            assert ends <= {Outcome.CANCELLED, Outcome.COMPLETED}
            with contextlib.suppress(AssertionError):
                await box.until(gone, 1.0)
        assert box.link.describe()["breaker"]["trips"] == 0
        await is_whole_again(box)

    through_tap(server, url, tmp_path, test, "digits", "slow", expected_ms=20.0)


def test_a_bad_item_fails_alone(server: Server, url: str, tmp_path: Path):
    async def run() -> None:
        # One batch at a time: a server that merges what is there fails what it has merged.
        models = "picky", "digits"
        async with using(server, url, tmp_path, *models, max_concurrency=1) as box:
            indices = [index % 4 for index in range(15)]
            indices[7] = 99
            asked = [{"index": np.array([index])} for index in indices]
            for index, answer in zip(
                indices, await all_of(box, "picky", asked, LONG_MS), strict=True
            ):
                if index == 99:
                    assert answer.outcome is Outcome.FAILED
                    assert "far: " in answer.reason
                else:
                    assert outputs(answer)["row"].tolist() == [[2.0 * index, 2.0 * index + 1]]
            await is_whole_again(box)

    asyncio.run(run())


def test_a_server_that_is_killed_and_comes_back_loses_nothing(
    server: Server, url: str, tmp_path: Path
):
    async def run() -> None:
        async with using(server, url, tmp_path, "digits", "slow", probe_s=0.1) as box:
            under_way = [box.submit("slow", SLOW, 2 * LONG_MS)[1] for _ in range(24)]
            await box.until(lambda: box.driver.core.runs)
            await asyncio.to_thread(server.kill)
            await box.until(lambda: box.breaker == "open", SECONDS)
            assert not box.driver.core.runs, "what was there is taken back"
            assert not all(future.done() for future in under_way)
            await asyncio.to_thread(server.start)
            for answer in await asyncio.gather(*under_way):
                assert outputs(answer)["y"].tolist() == [[0.0]]
            await is_whole_again(box)
            assert box.link.describe()["breaker"]["trips"] > 0

    asyncio.run(run())


def test_what_is_refused_for_overload_is_asked_again(server: Server, url: str, tmp_path: Path):
    _unless_without(server, "overload")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            tap = await stack.enter_async_context(tapped(url))
            # Each starts with a limit of eight batches in flight: together far more than wait.
            boxes = [
                await stack.enter_async_context(using(server, tap.url, tmp_path / name, "slow"))
                for name in "abcd"
            ]
            for _ in range(3):  # on a busy machine they may come as slowly as they are served
                bursts = [all_of(box, "slow", [SLOW] * 10, LONG_MS) for box in boxes]
                for answers in await asyncio.gather(*bursts):
                    assert [answer.outcome for answer in answers] == [Outcome.COMPLETED] * 10
                if any(call.status in REFUSALS for call in tap.of("slow")):
                    break
            else:
                raise AssertionError(f"none was refused: {Counter(c.status for c in tap.calls)}")
            for box in boxes:
                # On a busy machine a probe may be late; a refusal is no reason to trip.
                reason = box.link.describe()["breaker"]["reason"]
                assert not reason or reason.startswith("no answer")

    asyncio.run(run())


def test_a_budget_is_never_exceeded(server: Server, url: str, tmp_path: Path):
    async def test(box: Box, tap: Tap) -> None:
        for _ in range(2):
            outcomes = [answer.outcome for answer in await digits(box, 2_000)]
            assert outcomes.count(Outcome.COMPLETED) < len(IMAGES)
        # What is refused does not cost, and is asked again.
        ran = sum(call.items for call in tap.of("digits") if call.status not in REFUSALS)
        assert 0 < ran <= 30
        assert 0.01 * ran - 1e-9 <= box.link.describe()["spending"]["spent"] <= 0.3 + 1e-9

    limited = {"cost_per_request": 0.01, "budget_per_hour": 0.3}
    through_tap(server, url, tmp_path, test, "digits", **limited)


def test_headers_and_the_token_go_with_every_call(server: Server, url: str, tmp_path: Path):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(server.token.read_text() if server.token else new_token())

    async def test(box: Box, tap: Tap) -> None:
        await digits(box)
        for headers in [*tap.others, *[call.headers for call in tap.calls]]:
            assert headers["authorization"] == f"Bearer {token.read_text()}"
            assert headers["x-project"] == "42"

    headers = {"X-Project": "42"}
    through_tap(server, url, tmp_path, test, "digits", token_file=token, headers=headers)


def test_a_server_that_wants_another_token_is_not_used_and_says_so(
    server: Server, url: str, tmp_path: Path
):
    _unless_without(server, "token")
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(new_token())

    async def run() -> None:
        async with box_of(url, tmp_path, CARDS["digits"], token_file=token) as box:
            told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
            await box.until(lambda: "token" in told(), SECONDS)
            assert not box.is_up

    asyncio.run(run())


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_tls_is_spoken_and_the_certificate_looked_at(
    server: Server, scheme: str, tmp_path: Path, request: Any
):
    _unless_without(server, "tls")
    if server.ca is None:
        if scheme == "https":
            pytest.skip("Triton has TLS over gRPC alone")
        server = triton_with_tls(tmp_path)
        request.addfinalizer(server.stop)
        server.start()

    async def run() -> None:
        url = server.url(scheme)
        async with using(server, url, tmp_path, "digits", tls={"ca": server.ca}) as box:
            found = [outputs(answer)["scores"] for answer in await digits(box)]
            np.testing.assert_allclose(found, scores_of(IMAGES), rtol=1e-4, atol=1e-5)
        async with box_of(url, tmp_path / "b", CARDS["digits"], token_file=server.token) as box:
            told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
            texts = ("starting", "looking at the server")
            await box.until(lambda: told() not in texts, SECONDS)
            assert not box.is_up

    asyncio.run(run())


def _unless_without(server: Server, what: str) -> None:
    if what in server.without:
        pytest.skip(server.without[what])

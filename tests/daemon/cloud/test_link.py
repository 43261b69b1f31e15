from __future__ import annotations

import asyncio
import gc
import re
import shutil
import weakref
from collections.abc import Awaitable, Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console
from tritonclient.grpc import service_pb2 as pb

from scheduler.cli.status_view import status_view
from scheduler.core.outcomes import Outcome
from scheduler.daemon.cloud.endpoint import Fault, RemoteError
from scheduler.daemon.cloud.grpc_endpoint import GrpcEndpoint
from scheduler.daemon.submission import Submission
from tests.daemon.cloud.boxes import Box, box_of, numbers
from tests.daemon.cloud.far_server import FarServer, doubled, far_server

Test = Callable[[Box, FarServer], Awaitable[None]]


def with_far(folder: Path, test: Test, **settings: Any) -> None:
    async def run() -> None:
        async with far_server() as far, box_of(far.url, folder, **settings) as box:
            await box.until(lambda: box.is_up)
            await test(box, far)

    asyncio.run(run())


def test_a_batch_is_stacked_sent_and_split(tmp_path: Path):
    async def test(box: Box, far: FarServer) -> None:
        assert numbers(await box.ask(3.0)) == [6.0] * 4
        answers = await asyncio.gather(*[box.ask(float(value)) for value in range(40)])
        assert [numbers(answer)[0] for answer in answers] == [2.0 * v for v in range(40)]
        assert all(answer.target == "far" for answer in answers)
        assert max(request.inputs[0].shape[0] for request in far.asked) > 1, "batches grow"
        assert answers[0].offer is not None
        assert answers[0].offer.variant == "1"

    with_far(tmp_path, test)


def test_the_deadline_travels_as_what_is_left_of_it(tmp_path: Path):
    async def test(box: Box, far: FarServer) -> None:
        left: list[float] = []

        async def note(request: Any, context: Any) -> Any:
            left.append(context.time_remaining())
            return doubled(request)

        far.behaviour = note
        await box.ask(deadline_ms=1_000)
        timeout_us = far.asked[-1].parameters["timeout"].int64_param
        assert 0 < left[0] <= 1.1  # gRPC rounds it
        assert 0 < timeout_us <= 1_000_000
        assert timeout_us / 1e6 < 1.0, "the way back is taken off"

    with_far(tmp_path, test)


def test_headers_go_with_every_call(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("a-token-of-thirty-two-characters\n")
    token.chmod(0o600)

    async def test(box: Box, far: FarServer) -> None:
        await box.ask()
        assert far.metadata[-1]["authorization"] == "Bearer a-token-of-thirty-two-characters"
        assert far.metadata[-1]["x-project"] == "42"

    with_far(tmp_path, test, token_file=str(token), headers={"X-Project": "42"})


def test_a_token_that_is_replaced_is_shown_once_the_server_refuses_the_old_one(tmp_path: Path):
    token, fresh = tmp_path / "token", "a-fresh-token-of-many-characters"
    token.write_text("a-token-of-thirty-two-characters\n")
    token.chmod(0o600)

    async def demand_fresh(request: Any, context: Any) -> Any:
        if dict(context.invocation_metadata())["authorization"] != f"Bearer {fresh}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is that?")
        return doubled(request)

    async def test(box: Box, far: FarServer) -> None:
        assert (await box.ask()).outcome is Outcome.COMPLETED
        far.behaviour = demand_fresh
        away = token.rename(tmp_path / "away")
        assert (await box.ask(deadline_ms=500)).outcome is not Outcome.COMPLETED

        def said() -> str:
            (target,) = box.driver.status()["targets"]
            return str(target["progress"]["text"])

        await box.until(lambda: "token_file: can't be read" in said())
        away.write_text(fresh)
        away.rename(token)
        await box.until(lambda: box.is_up)
        assert (await box.ask()).outcome is Outcome.COMPLETED

    with_far(tmp_path, test, token_file=str(token))


def test_a_key_that_the_server_repeats_is_not_told_further(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("a-token-of-thirty-two-characters\n")
    token.chmod(0o600)

    async def refuse(request: Any, context: Any) -> Any:
        shown = dict(context.invocation_metadata())["authorization"]
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"not {shown.split()[1]}, but another"
        )

    async def test(box: Box, far: FarServer) -> None:
        far.behaviour = refuse
        answered = await box.ask()
        assert answered.outcome is Outcome.FAILED
        assert "not ***, but another" in answered.reason

    with_far(tmp_path, test, token_file=str(token))


def test_the_quantile_that_status_tells_of_is_the_policys(tmp_path: Path):
    def told(box: Box) -> list[str]:
        console = Console(file=StringIO(), width=200, color_system=None)
        console.print(status_view(box.driver.status()))
        assert isinstance(console.file, StringIO)
        return re.findall(r"within the (\S+) predicted", console.file.getvalue())

    async def test(box: Box, far: FarServer) -> None:
        for quantile, words in ((0.99, "99%"), (0.6, "60%"), (0.555, "55.5%")):
            box.driver.swap_policy("edf", {"quantile": quantile})
            assert told(box) == [], "nothing has run that it counted on"
            for _ in range(20):  # what is learned of the cloud may replace its offer, and its curve
                await box.ask()
                if said := told(box):
                    break
            assert said == [words]

    with_far(tmp_path, test)


def test_a_cancelled_request_is_cancelled_there(tmp_path: Path):
    async def test(box: Box, far: FarServer) -> None:
        far.behaviour = hang
        request_id, future = box.post()
        await box.until(lambda: far.asked and far.asked[-1].inputs[0].shape == [1, 4])
        before = len(far.asked)
        await box.until(lambda: len(far.asked) >= before)
        box.driver.cancel(request_id)
        assert (await future).outcome is Outcome.CANCELLED
        await box.until(lambda: far.cancelled == 1)
        assert box.breaker == "closed"

    with_far(tmp_path, test, expected_ms=5)


@pytest.mark.parametrize("ended", ["cancelled", "expired"])
def test_a_batch_that_nobody_waits_for_keeps_nothing_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
):
    """Else a cloud that is silent for hours fills the memory with what was sent there."""

    async def test(box: Box, far: FarServer) -> None:
        far.behaviour = hang
        sent: list[weakref.ref[memoryview]] = []
        run = box.link.run

        def noted(dispatch: Any, batch: Sequence[Submission]) -> None:
            sent.extend(weakref.ref(each.body) for each in batch)
            run(dispatch, batch)

        monkeypatch.setattr(box.link, "run", noted)
        request_id, future = box.post(deadline_ms=200)
        await box.until(lambda: far.asked and far.asked[-1].inputs[0].shape == [1, 4])
        if ended == "cancelled":
            box.driver.cancel(request_id)
        assert (await future).outcome.value == ended
        await box.until(lambda: far.cancelled == 1)
        assert sent
        await box.until(lambda: not any(body() is not None for body in sent), seconds=1)

    gc.disable()
    try:
        with_far(tmp_path, test, expected_ms=5)
    finally:
        gc.enable()


async def hang(request: Any, context: Any) -> Any:
    await asyncio.sleep(60)


def abort(status: grpc.StatusCode, *metadata: tuple[str, str]) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        await context.abort(status, "no", metadata)

    return behaviour


def once(fault: Any) -> Any:
    """A fault at first, and then none."""
    faults = [fault]

    async def behaviour(request: Any, context: Any) -> Any:
        return await faults.pop()(request, context) if faults else doubled(request)

    return behaviour


def answers_with(**output: Any) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        raw = output.pop("raw", b"\0" * 16)
        response = pb.ModelInferResponse()
        response.outputs.add(**{"name": "y", "datatype": "FP32", "shape": [1, 4], **output})
        response.raw_output_contents.append(raw)
        return response

    return behaviour


@pytest.mark.parametrize(
    "status",
    ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "UNKNOWN"],
)
def test_after_a_fault_that_passes_the_request_is_served(tmp_path: Path, status: str):
    async def test(box: Box, far: FarServer) -> None:
        far.behaviour = once(abort(grpc.StatusCode[status]))
        assert numbers(await box.ask(2.0, deadline_ms=20_000)) == [4.0] * 4

    with_far(tmp_path, test)


def test_a_refusal_that_concerns_one_deadline_does_not_close_the_server_to_others(tmp_path: Path):
    async def test(box: Box, far: FarServer) -> None:
        status = grpc.StatusCode.RESOURCE_EXHAUSTED
        far.behaviour = once(abort(status, ("laxity-code", "infeasible"), ("retry-after", "60")))
        assert numbers(await box.ask(2.0, deadline_ms=20_000)) == [4.0] * 4

    with_far(tmp_path, test)


@pytest.mark.parametrize("said", ["Exceeds maximum queue size", "Request timeout expired"])
def test_what_triton_refuses_as_unavailable_does_not_open_the_breaker(tmp_path: Path, said: str):
    async def test(box: Box, far: FarServer) -> None:
        async def behaviour(request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"[request id: <id_unknown>] {said}")

        far.behaviour = once(behaviour)
        assert numbers(await box.ask(2.0, deadline_ms=20_000)) == [4.0] * 4
        assert box.link.describe()["breaker"]["trips"] == 0

    with_far(tmp_path, test)


@pytest.mark.parametrize("said", ["gave up", "refused"])
def test_a_server_that_gives_up_at_once_is_not_asked_again_at_once(tmp_path: Path, said: str):
    async def test(box: Box, far: FarServer) -> None:
        if said == "gave up":
            far.behaviour = abort(grpc.StatusCode.DEADLINE_EXCEEDED)
        else:
            far.behaviour = abort(grpc.StatusCode.RESOURCE_EXHAUSTED, ("retry-after", "0"))
        before = len(far.asked)
        await box.ask(deadline_ms=500)
        assert len(far.asked) - before < 40

    with_far(tmp_path, test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [2, 4]},
        {"shape": [1, 5], "raw": b"\0" * 20},
        {"shape": [4]},
        {"datatype": "FP16", "raw": b"\0" * 8},
        {"raw": b"\0" * 15},
        {"name": "z"},
        {"shape": [1, -4]},
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure_and_never_a_result(tmp_path: Path, wrong: Any):
    async def test(box: Box, far: FarServer) -> None:
        async def behaviour(request: Any, context: Any) -> Any:
            return await answers_with(**wrong)(request, context)

        far.behaviour = behaviour
        answer = await box.ask(deadline_ms=20_000)
        assert answer.outcome is Outcome.FAILED
        assert "far: " in answer.reason

    with_far(tmp_path, test)


def test_one_bad_item_does_not_fail_the_others_of_its_batch(tmp_path: Path):
    async def test(box: Box, far: FarServer) -> None:
        async def no_sevens(request: Any, context: Any) -> Any:
            if 14.0 in memoryview(doubled(request).raw_output_contents[0]).cast("f"):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no sevens")
            return doubled(request)

        await asyncio.gather(*[box.ask(1.0) for _ in range(40)])
        far.behaviour = no_sevens
        answers = await asyncio.gather(*[box.ask(float(v), 20_000) for v in range(20)])
        assert [a.outcome is Outcome.FAILED for a in answers] == [v == 7 for v in range(20)]
        assert "no sevens" in answers[7].reason

    with_far(tmp_path, test)


def test_what_can_not_be_written_down_is_not_spent_and_not_tried_without_end(tmp_path: Path):
    settings = {"cost_per_request": 1.0, "budget_per_day": 100.0, "expected_ms": 5.0}

    async def run() -> None:
        async with far_server() as far, box_of(far.url, tmp_path, **settings) as box:
            await box.until(lambda: box.is_up)
            shutil.rmtree(tmp_path / "cloud")
            (tmp_path / "cloud").write_text("a file where a folder should be")
            answer = await box.ask(deadline_ms=300)
            assert answer.outcome is not Outcome.COMPLETED
            assert far.asked == []
            assert box.driver.core._next_run_id == 2, "it was sent once"

    asyncio.run(run())


def test_bytes_that_are_no_message_are_an_error_of_the_call():
    class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _details: Any) -> Any:
            async def answer(*_: Any) -> bytes:
                return b"\xff\xff"

            return grpc.unary_unary_rpc_method_handler(answer)

    async def ask() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Server(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        endpoint = GrpcEndpoint(
            lambda options: grpc.aio.insecure_channel(f"127.0.0.1:{port}", options), {}, 1_000
        )
        for call in (endpoint.live(20.0), endpoint.extensions(20.0), endpoint.model("m", 20.0)):
            with pytest.raises(RemoteError, match="not a message of the protocol") as error:
                await call
            assert error.value.fault is Fault.FAILED
        await endpoint.close()
        await server.stop(0)

    asyncio.run(ask())

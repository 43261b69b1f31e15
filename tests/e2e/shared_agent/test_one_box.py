"""A request's whole way: client, socket, scheduler actor, worker actor, a real runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import (
    Client,
    DeadlineExpired,
    DeadlineInfeasible,
    ExecutionFailed,
    InvalidInput,
    ModelNotFound,
)
from tests.e2e.running_agent import RunningAgent, command
from tests.waiting import eventually

SLOW = {"x": np.ones((1, 1), np.float32)}
Answer = TypeVar("Answer")


@pytest.fixture
def client(shared_agent: RunningAgent):
    with Client(shared_agent.url) as client:
        yield client


def latency_ms(client: Client, model: str) -> float:
    described = {m["name"]: m for m in client.models()["models"]}[model]
    return float(described["variants"][0]["targets"][0]["latency_ms"]["1"]["p50"])


def test_a_result_holds_outputs_and_how_it_went(client: Client) -> None:
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    result = client.infer("relu", {"x": x}, deadline_ms=20_000)
    np.testing.assert_array_equal(result["y"], [0.0, 0.0, 2.0])
    assert (result.outcome, result.target, result.late) == ("completed", "cpu:0", False)
    assert result.runtime in ("openvino", "onnxruntime")
    timing = result.timing
    parts = timing.queue_ns + timing.transfer_ns + timing.execute_ns
    assert 0 < parts == timing.total_ns


def test_inputs_may_come_in_any_order_and_with_a_batch_dimension(client: Client) -> None:
    a, b = np.arange(3, dtype=np.float32), np.full(3, 10, np.int32)
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}):
        result = client.infer("pair", inputs, deadline_ms=20_000)
        np.testing.assert_array_equal(result["sum"], [10, 11, 12])
        assert result["total"] == pytest.approx(3.0)
    batched = client.infer("pair", {"b": b[None], "a": a[None]}, deadline_ms=20_000)
    assert (batched["sum"].shape, batched["total"].shape) == ((1, 3), (1,))


def softmax(x: NDArray[Any]) -> list[float]:
    return [float(each) for each in np.exp(x) / np.exp(x).sum()]


@pytest.mark.parametrize("length", [1, 3, 4, 11, 20])
@pytest.mark.parametrize("leading", [(), (1,)])
def test_an_item_that_is_padded_has_an_answer_of_its_own_length(
    client: Client, length: int, leading: tuple[int, ...]
) -> None:
    x = np.linspace(-1, 1, length, dtype=np.float32)
    inputs = {"x": x.reshape(*leading, -1), "mask": np.ones((*leading, length), np.int64)}
    result = client.infer("padded", inputs, deadline_ms=20_000)
    assert result["y"].shape == (*leading, length)
    np.testing.assert_allclose(result["y"].ravel(), softmax(x), rtol=1e-3)


def test_a_durable_task_that_is_padded_has_an_answer_of_its_own_length(client: Client) -> None:
    x = np.array([0.5, 1.5, -1.0], np.float32)
    inputs = {"x": x, "mask": np.array([1, 1, 0])}
    task = client.submit("padded", inputs, deadline_s=60, durable=True)
    want = [*softmax(x[:2]), 0]
    np.testing.assert_allclose(task.result()["y"], want, rtol=1e-3)


def test_requests_are_served_in_the_order_of_their_deadlines(client: Client) -> None:
    one_ms = latency_ms(client, "slow")
    order: list[str] = []

    def note(name: str, _: object) -> None:
        order.append(name)

    # They keep the device busy even where this process is held up before all are submitted.
    for _ in range(24):
        client.submit("slow", SLOW, deadline_ms=60_000, priority=0)
    futures = []
    for name, runs in {"d": 490, "b": 470, "c": 480, "a": 460}.items():
        futures.append(client.submit("slow", SLOW, deadline_ms=runs * one_ms))
        futures[-1].add_done_callback(partial(note, name))
    for future in futures:
        future.result()
    eventually(lambda: len(order) == 4)
    assert order == [*"abcd"]


def test_an_impossible_deadline_is_refused_with_a_counter_offer_that_holds(client: Client) -> None:
    one_ms = latency_ms(client, "slow")
    refusal = in_time(lambda: refused(client, one_ms / 4))
    earliest_ms = refusal.earliest_ms
    assert earliest_ms is not None
    assert earliest_ms > one_ms / 4
    assert refusal.detail["stage"] == "refused"
    # The offer holds for the scheduler; twice of it leaves room for the way.
    result = in_time(lambda: client.infer("slow", SLOW, deadline_ms=2 * earliest_ms + 100))
    assert result.outcome == "completed"


def refused(client: Client, deadline_ms: float) -> DeadlineInfeasible:
    with pytest.raises(DeadlineInfeasible) as refusal:
        client.infer("slow", SLOW, deadline_ms=deadline_ms)
    return refusal.value


def in_time(ask: Callable[[], Answer]) -> Answer:
    """What is answered before the deadline, which a busy machine may let pass for a while."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        with contextlib.suppress(DeadlineExpired):
            answers.append(ask())
        return bool(answers)

    eventually(is_answered)
    return answers[0]


def test_overload_is_refused_or_in_time_and_never_late(client: Client) -> None:
    one_ms = latency_ms(client, "slow")

    def count_in_time() -> int:
        futures = [client.submit("slow", SLOW, deadline_ms=8 * one_ms) for _ in range(200)]
        in_time = 0
        for future in futures:
            with contextlib.suppress(DeadlineInfeasible, DeadlineExpired):
                assert not future.result().late
                in_time += 1
        assert in_time <= 100
        return in_time

    eventually(count_in_time)  # a busy machine may finish none for a while
    assert client.infer("relu", {"x": np.ones(3, np.float32)}, deadline_ms=20_000)


def test_a_late_result_comes_only_if_it_was_asked_for(client: Client) -> None:
    budget_ms = latency_ms(client, "slow") / 2
    for _ in range(20):
        # A busy machine may not even begin before the deadline.
        with contextlib.suppress(DeadlineExpired):
            result = client.infer("slow", SLOW, deadline_ms=budget_ms, accept_late=True)
            if result.late:
                break
            budget_ms = max(1.0, budget_ms / 2)  # it was measured while others had the cores
    assert result.late
    assert result.outcome == "late"


def test_one_bad_item_fails_alone(client: Client) -> None:
    good, bad = {"index": np.array(1)}, {"index": np.array(99)}
    futures = [
        client.submit("gather", bad if i == 7 else good, deadline_ms=5000) for i in range(16)
    ]
    for i, future in enumerate(futures):
        if i == 7:
            with pytest.raises(ExecutionFailed, match="indices"):
                future.result()
        else:
            np.testing.assert_array_equal(future.result()["row"], [2.0, 3.0])


def test_a_cancelled_request_is_not_answered(client: Client) -> None:
    futures = [client.submit("slow", SLOW, deadline_ms=60_000) for _ in range(3)]
    client.cancel(futures[2])
    with pytest.raises(CancelledError):
        futures[2].result()
    assert all(future.result() for future in futures[:2])


def test_wrong_input_is_named_with_what_would_be_right(client: Client) -> None:
    x = np.ones(3, np.float32)
    wrong: list[tuple[str, dict[str, Any], type[InvalidInput], str]] = [
        ("rellu", {"x": x}, ModelNotFound, "did you mean 'relu'"),
        ("relu", {"z": x}, InvalidInput, "takes x"),
        ("relu", {"x": x.astype(np.float64)}, InvalidInput, "is float32, not float64"),
        ("relu", {"x": np.ones(4, np.float32)}, InvalidInput, r"has shape \[3\], not \[4\]"),
        ("relu", {"x": np.ones((2, 3), np.float32)}, InvalidInput, "one item"),
    ]
    for model, inputs, error, message in wrong:
        with pytest.raises(error, match=message):
            client.infer(model, inputs, deadline_ms=5_000)
    with pytest.raises(ModelNotFound, match="variant 'best'"):
        client.infer("relu", {"x": x}, deadline_ms=5_000, variant="best")


def test_what_cannot_be_served_is_said(client: Client) -> None:
    problems = {p["model"]: p["reason"] for p in client.models()["problems"]}
    assert "LFS" in problems["broken"]
    status = client.status()
    assert [target["up"] for target in status["targets"]] == [True]
    assert status["policy"]["name"] == "goodput"


def test_frames_are_answered_in_their_order(client: Client) -> None:
    frames = [np.full(3, i, np.float32) for i in range(50)]
    answers = client.map("relu", frames, deadline_ms=5000)
    assert [result["y"][0] for result in answers] == list(range(50))


def test_how_long_a_device_needs_between_two_batches_is_measured(client: Client) -> None:
    for value in range(20):
        client.infer("relu", {"x": np.full(3, value, np.float32)}, deadline_ms=20_000)
    (device,) = client.status()["targets"]
    assert 0 < device["handover_ns"] < device["lead_ns"]


def test_large_bodies_are_counted_only_while_they_come_in(client: Client) -> None:
    frame = np.ones(9_000, np.float32)  # so large that a read may bring parts of two
    answers = client.map("wide", [frame] * 200, deadline_ms=20_000)
    assert sum(1 for _ in answers) == 200
    assert client.status()["reading_bytes"] == 0


def test_of_ray_there_is_only_what_a_box_needs(shared_agent: RunningAgent) -> None:
    commands = [command(process) for process in shared_agent.processes()]
    assert any("raylet" in each for each in commands)
    assert not [c for c in commands if "autoscaler/_private" in c or "dashboard/dashboard.py" in c]

"""What a door tells the scheduler of a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ModelNotFound
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import LEAST_MS
from scheduler.tenants import ANYONE
from tests.fake_box import FakeBox


async def told_ms(deadline_ms: float, way_out_ms: float) -> float:
    """The deadline that is left of a caller's, where the way out always takes as long."""
    box = Box("unix:///nowhere")
    for _ in range(200):
        box.way_out.observe(int(way_out_ms * 1e6))
    inputs = {"x": np.zeros(1, np.float32)}
    call = box.call("noop", inputs, deadline_ms, None, None, False, False, ANYONE, lambda _: None)
    return (call.deadline_ns - call.submitted_ns) / 1e6


@given(st.floats(0.01, 1e6), st.floats(0, 20))
def test_a_door_keeps_its_own_ways_of_a_deadline_and_never_much_of_it(
    deadline_ms: float, way_out_ms: float
) -> None:
    told = asyncio.run(told_ms(deadline_ms, way_out_ms))
    assert 7 / 8 * deadline_ms - 1e-5 <= told < deadline_ms
    if deadline_ms > 8 * (2 * way_out_ms + 1):
        assert deadline_ms - told > 2 * 0.99 * way_out_ms


@pytest.mark.parametrize(
    ("deadline_ms", "said"),
    [(LEAST_MS, "the deadline is over"), (1e-3, "the deadline of 0.001 ms is over")],
)
def test_a_deadline_that_is_over_at_once_is_said_as_a_caller_gave_it(
    tmp_path: Path, deadline_ms: float, said: str
) -> None:
    async def told() -> str:
        answers: list[Any] = []
        box = Box(fake.url)
        await box.ask("models")
        inputs = {"x": np.zeros(1, np.float32)}
        args = (deadline_ms, None, None, False, False, ANYONE, answers.append)
        box.start([box.call("digits", inputs, *args)])
        box.close()
        return str(answers[0])

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        assert asyncio.run(told()) == f"{said} before the scheduler can be asked"


def test_a_deadline_that_is_over_is_no_mistake_of_the_callers() -> None:
    assert 0 <= asyncio.run(told_ms(LEAST_MS, 0)) <= LEAST_MS


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("broken", "model 'broken' can't be served: not an ONNX file"),
        ("other", "model 'other' is not in the repository"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(tmp_path: Path, model: str, told: str) -> None:
    async def asked() -> str:
        box = Box(fake.url)
        with pytest.raises(ModelNotFound) as raised:
            await box.model(model)
        box.close()
        assert raised.value.detail == {"model": model}
        return str(raised.value)

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        fake.models = {
            "models": [],
            "problems": [{"model": "broken", "reason": "not an ONNX file"}],
        }
        fake.status = {"targets": [], "draining": False, "policy": {}}
        assert asyncio.run(asked()) == told

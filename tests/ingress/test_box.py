"""What a door tells the scheduler of a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ModelNotFound
from scheduler.ingress.oip import box as oip_box
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import LEAST_MS
from scheduler.ingress.oip.request import Terms
from scheduler.tenants import ANYONE, Tenant
from tests.fake_box import FakeBox, ignore
from tests.waiting import PATIENCE_S


async def told_ms(deadline_ms: float, way_out_ms: float) -> float:
    """The deadline that is left of a caller's, where the way out always takes as long."""
    box = Box("unix:///nowhere")
    for _ in range(200):
        box.way_out.observe(int(way_out_ms * 1e6))
    inputs = {"x": np.zeros(1, np.float32)}
    terms = Terms(ANYONE, deadline_ms, deadline_ms)
    call = box.call("noop", inputs, None, terms, lambda _: None)
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
        terms = Terms(ANYONE, deadline_ms, deadline_ms)
        box.start([box.call("digits", inputs, None, terms, answers.append)])
        box.close()
        return str(answers[0])

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        assert asyncio.run(told()) == f"{said} before the scheduler can be asked"


def test_a_deadline_that_is_over_is_no_mistake_of_the_callers() -> None:
    assert 0 <= asyncio.run(told_ms(LEAST_MS, 0)) <= LEAST_MS


def test_who_hangs_up_leaves_no_tensors(tmp_path: Path) -> None:
    """Else clients that hang up again and again fill the memory beyond `doors.held_mb`."""

    async def kept() -> weakref.ref[Any]:
        box = Box(fake.url)
        await box.ask("models")
        x = np.zeros(1, np.float32)
        terms = Terms(ANYONE, 60_000, 60_000)
        call = box.call("digits", {"x": x}, None, terms, lambda _: None)
        box.start([call])
        box.cancel(call.id)
        box.close()
        return weakref.ref(x)

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        fake.on_infer = ignore
        gc.disable()
        try:
            assert asyncio.run(kept())() is None
        finally:
            gc.enable()


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


@pytest.mark.parametrize(
    ("model", "models", "told"),
    [
        ("digit", ("*",), " (did you mean 'digits'?)"),
        ("digit", ("digit*",), " (did you mean 'digits'?)"),
        ("digit", ("digit",), ""),
        ("cats", ("*",), " (there are: digits, other)"),
        ("cats", ("c*", "digits"), " (there are: digits)"),
    ],
)
def test_a_name_that_no_model_has_gets_those_that_its_caller_may_use(
    tmp_path: Path, model: str, models: tuple[str, ...], told: str
) -> None:
    async def asked() -> str:
        box = Box(fake.url)
        with pytest.raises(ModelNotFound) as raised:
            await box.model(model, tenant=Tenant(name="t", models=models))
        box.close()
        return str(raised.value)

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        of_all: dict[str, Any] = {"batched": True, "max_batch": 8, "loaded": True}
        of_all |= {"inputs": [], "outputs": [], "variants": []}
        fake.models = {"models": [{"name": n, **of_all} for n in ("digits", "other")]}
        fake.models["problems"] = []
        fake.status = {"targets": [], "draining": False, "policy": {}}
        assert asyncio.run(asked()) == f"model {model!r} is not in the repository{told}"


def test_a_signature_that_has_changed_is_learned_though_only_requests_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def models(batched: bool) -> dict[str, Any]:
        model = {"name": "digits", "batched": batched, "max_batch": 8, "loaded": True}
        return {"models": [{**model, "inputs": [], "outputs": [], "variants": []}], "problems": []}

    async def learned() -> None:
        box = Box(fake.url)
        assert (await box.model("digits")).batched
        known = box.known("digits")
        assert known is not None
        assert known.batched
        fake.models = models(batched=False)
        monkeypatch.setattr(oip_box, "_KNOWN_S", 0)
        while (known := box.known("digits")) is None or known.batched:
            await asyncio.sleep(0.001)
        box.close()

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        fake.models = models(batched=True)
        fake.status = {"targets": [], "draining": False, "policy": {}}
        asyncio.run(asyncio.wait_for(learned(), PATIENCE_S))


def test_a_look_that_failed_while_nobody_waited_for_it_is_no_error(tmp_path: Path) -> None:
    async def failures() -> list[Any]:
        found: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: found.append(told))
        box = Box(fake.url)
        assert box.known("digits") is None
        while box._snapshot is None or not box._snapshot.done():
            await asyncio.sleep(0.001)
        box.changed()
        gc.collect()
        box.close()
        return found

    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        fake.models = {}
        fake.status = {"targets": [], "draining": False, "policy": {}}
        assert asyncio.run(asyncio.wait_for(failures(), PATIENCE_S)) == []

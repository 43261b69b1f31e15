from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pytest

from tests.workers import onnx_models
from workers.runtimes.base import DeviceSpec, ModelLoadError, RunError
from workers.runtimes.emulated import Emulated, EmulatedSession
from workers.sampling import sample_items
from workers.stacking import stack_items


@dataclass
class Clock:
    """A clock that jumps to whatever it is asked to wait for."""

    now_ns: int = 0

    def read_ns(self) -> int:
        return self.now_ns

    def wait_until(self, deadline_ns: int) -> None:
        self.now_ns = max(self.now_ns, deadline_ns)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def emulate(add, load, tmp_path, clock):
    add("two", onnx_models.two_by_two())
    runtime = Emulated(clock.read_ns, clock.wait_until)

    def start(**options: Any) -> EmulatedSession:
        model = load("two")
        device = DeviceSpec("npu:0", "npu", runtimes=("emulated",), options=options)
        return runtime.load(model, model.variants[0], device, tmp_path)

    return start


@pytest.fixture
def batch(load):
    def of(size: int):
        return stack_items(sample_items(load("two"), size))

    return of


def times_ns(session: EmulatedSession, clock: Clock, inputs: Any, count: int) -> list[int]:
    times = []
    for _ in range(count):
        began_ns = clock.now_ns
        session.run(inputs)
        times.append(clock.now_ns - began_ns)
    return times


def test_a_batch_takes_its_base_and_its_items(emulate, batch, clock):
    session = emulate(base_ms=2, per_item_ms=0.5)

    assert times_ns(session, clock, batch(1), 1) == [2_500_000]
    assert times_ns(session, clock, batch(4), 1) == [4_000_000]


def test_it_answers_zeros_of_the_right_shape(emulate, batch):
    outputs = emulate(base_ms=1).run(batch(3))

    assert {name: (array.shape, array.dtype.name) for name, array in outputs.items()} == {
        "sum": ((3, 3), "float32"),
        "total": ((3,), "float32"),
    }
    assert not any(array.any() for array in outputs.values())


def test_jitter_is_seeded_and_keeps_the_median(emulate, batch, clock):
    first, again, other = (
        times_ns(emulate(base_ms=1, jitter=0.3, seed=seed), clock, batch(1), 400)
        for seed in (1, 1, 2)
    )

    assert first == again != other
    assert median(first) == pytest.approx(1e6, rel=0.1)
    assert len(set(first)) > 300


def test_a_share_of_batches_fails_and_says_it_is_emulated(emulate, batch):
    session = emulate(base_ms=1, fail_rate=0.25, seed=3)

    failures = [error for error in (fault(session, batch(1)) for _ in range(200)) if error]

    assert 25 < len(failures) < 75
    assert {str(error) for error in failures} == {"emulated failure on npu:0"}


def fault(session: EmulatedSession, inputs: Any) -> RunError | None:
    try:
        session.serve(inputs)
    except RunError as error:
        return error
    return None


def test_a_model_may_have_settings_of_its_own(emulate, batch, clock):
    session = emulate(base_ms=1, models={"two": {"base_ms": 7}})

    assert times_ns(session, clock, batch(1), 1) == [7_000_000]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "base_ms: Field required"),
        ({"base_ms": -1}, "base_ms: Input should be greater"),
        ({"base_ms": True}, "base_ms: Input should be a valid number"),
        ({"base_ms": float("inf")}, "base_ms: Input should be less"),
        ({"base_ms": 1, "link": {"mbps": "100"}}, "mbps: Input should be a valid number"),
        ({"base_ms": 1, "jiter": 1}, r"jiter: .*\(options are base_ms, per_item_ms, jitter"),
    ],
)
def test_wrong_options_are_told(emulate, options, said):
    with pytest.raises(ModelLoadError, match=said):
        emulate(**options)


def test_the_real_wait_ends_no_sooner_than_asked(add, load, tmp_path):
    add("relu", onnx_models.relu())
    model, device = load("relu"), DeviceSpec("npu:0", "npu", options={"base_ms": 1.5})
    session = Emulated().load(model, model.variants[0], device, tmp_path)

    began_ns = time.perf_counter_ns()
    session.run({"x": np.ones((1, 3), np.float32)})

    assert time.perf_counter_ns() - began_ns >= 1_500_000

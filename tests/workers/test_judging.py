"""Judging a session: its answers, how large its batches may be, what a batch draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.workers import onnx_models
from tests.workers.conftest import QUICK, SLOW
from workers.judging import SAMPLES, Judge, batch_limit
from workers.model import Tolerance

TIGHT = Tolerance(rtol=1e-6, atol=1e-6)


class Doubler:
    """A session that doubles, up to a batch size from which on it is wrong or fails."""

    max_batch = 32

    def __init__(self, wrong_from: int = 99, fails_from: int = 99) -> None:
        self._wrong_from, self._fails_from = wrong_from, fails_from
        self.batches: list[int] = []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs["x"]
        self.batches.append(len(x))
        if len(x) >= self._fails_from:
            raise MemoryError("no room for the workspace")
        y = 2 * x
        if len(x) >= self._wrong_from:
            y[-1] += 0.5
        return {"y": y}

    def close(self) -> None:
        pass


@pytest.fixture
def model(add, load):
    add("relu", onnx_models.relu(), "max_batch: 8\nvariants: {a: {file: model.onnx}}")
    return load("relu")


def measure(model, session, joules=lambda: None, has_lost=lambda ladder: False, effort=QUICK):
    judge = Judge(model, TIGHT, effort, joules)
    told: list[int] = []
    verdict = judge.measure(session, judge.answers(session), 8, tell=told.append, has_lost=has_lost)
    return verdict, told


def test_all_sizes_of_a_session_that_batches_well_are_measured(model):
    verdict, told = measure(model, Doubler())

    assert set(verdict.latency_ns) <= {1, 2, 4, 8}
    assert (verdict.limited, verdict.partial) == (None, False)
    assert told == sorted(verdict.latency_ns)


@pytest.mark.parametrize(
    ("session", "sizes", "said"),
    [
        (Doubler(wrong_from=2), {1}, "served one item at a time: item 1 of a batch of 2 differs"),
        (Doubler(fails_from=2), {1}, "served one item at a time: a batch of 2 fails: no room"),
        (Doubler(wrong_from=4), {1, 2}, "served in batches of at most 2: item 3 of a batch of 4"),
        (Doubler(fails_from=3), {1, 2}, "served in batches of at most 2: a batch of 4 fails"),
    ],
)
def test_a_size_at_which_answers_change_ends_the_ladder(model, session, sizes, said):
    verdict, _ = measure(model, session)

    assert verdict.latency_ns.keys() == sizes
    assert verdict.limited is not None
    assert verdict.limited.startswith(said)


def test_who_has_lost_alone_is_not_measured_further(model):
    session = Doubler()
    verdict, told = measure(model, session, has_lost=lambda ladder: set(ladder) == {1})

    assert verdict.latency_ns.keys() == {1}
    assert (verdict.partial, verdict.limited, told) == (True, None, [1])
    assert set(session.batches) == {1}


def test_wrong_answers_are_told_with_their_numbers(model):
    judge = Judge(model, TIGHT, QUICK)
    right = judge.answers(Doubler())
    wrong = [{"y": answer["y"] + np.float32(0.25)} for answer in right]

    assert judge.fault(right, right) is None
    assert (judge.fault(wrong, right) or "").startswith("'y' is off by 0.25, allowed is ")


def test_what_a_batch_draws_is_the_meters_rise_shared_among_its_runs(model):
    session = Doubler()

    def joules() -> float:
        # Each item that was run has drawn a millijoule.
        return sum(session.batches) / 1000

    verdict, _ = measure(model, session, joules)

    assert verdict.energy_uj == {batch: batch * 1000 for batch in verdict.latency_ns}


def test_a_counter_that_falls_or_stands_still_has_told_nothing(model):
    falling = iter(range(1000, 0, -1))
    assert measure(model, Doubler(), lambda: float(next(falling)))[0].energy_uj == {}
    assert measure(model, Doubler(), lambda: 7.0)[0].energy_uj == {}


def test_without_a_meter_no_energy_is_told(model):
    assert measure(model, Doubler())[0].energy_uj == {}


def test_warming_up_runs_every_size_once(model):
    session = Doubler()

    Judge(model, TIGHT, QUICK).warm_up(session, [4, 1, 2])

    assert session.batches == [1, 2, 4]


def test_the_smallest_limit_counts(add, load, model):
    add("scalar", onnx_models.scalar())

    assert batch_limit(Doubler(), model, 99) == 8
    assert batch_limit(Doubler(), model, 3) == 3
    assert batch_limit(Doubler(), load("scalar"), 99) == 1


def test_the_answers_of_a_slow_model_are_its_measurement(model):
    slow = Doubler()
    verdict, _ = measure(model, slow, effort=SLOW)
    assert slow.batches.count(1) == SAMPLES
    assert len(verdict.latency_ns[1]) == SAMPLES - 1


def test_a_slow_model_is_run_again_for_what_it_draws(model):
    slow = Doubler()
    verdict, _ = measure(model, slow, lambda: float(len(slow.batches)), effort=SLOW)
    assert slow.batches.count(1) > SAMPLES
    assert 1 in verdict.energy_uj

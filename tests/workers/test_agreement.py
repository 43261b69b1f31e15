from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from workers.agreement import batch_fault, disagreement
from workers.model import Tolerance

STRICT = Tolerance(rtol=0, atol=0)
LOOSE = Tolerance(rtol=0.01, atol=0.001)


def y(*values: float, dtype: str = "float32") -> dict[str, NDArray[Any]]:
    return {"y": np.array(values, dtype)}


@given(arrays(np.float32, 5))
def test_an_answer_agrees_with_itself(values):
    assert disagreement({"y": values}, {"y": values.copy()}, STRICT) is None


def test_the_allowed_distance_scales_with_the_largest_magnitude():
    assert disagreement(y(0.9, 100), y(0, 100), LOOSE) is None
    assert disagreement(y(0.9, 1), y(0, 1), LOOSE) == "'y' is off by 0.9, allowed is 0.011"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"z": np.zeros(2)}, "outputs ['z'] instead of ['y']"),
        (y(1, 2, 3), "'y' has shape (3,) instead of (2,)"),
        (y(1, 2, dtype="float64"), "'y' is float64 instead of float32"),
        (y(1, np.nan), "'y' has infinities or NaNs in other places"),
        (y(1, np.inf), "'y' has infinities or NaNs in other places"),
    ],
)
def test_what_differs_is_told(found, said):
    assert disagreement(found, y(1, 2), LOOSE) == said


def test_infinities_and_nans_agree_in_the_same_places():
    values = (np.nan, np.inf, -np.inf, 1)

    assert disagreement(y(*values), y(*values), STRICT) is None
    assert disagreement(y(*values), y(np.nan, -np.inf, -np.inf, 1), LOOSE) is not None


def test_booleans_and_integers_are_compared_as_numbers():
    assert disagreement(y(1, 0, dtype="bool"), y(1, 1, dtype="bool"), LOOSE) is not None
    assert disagreement(y(7, dtype="int64"), y(8, dtype="int64"), LOOSE) is not None


@given(st.integers(1, 4))
def test_a_batch_of_independent_items_has_no_fault(count):
    items = [{"x": np.full((1, 3), i, np.float32)} for i in range(count)]
    batch = {"x": np.concatenate([item["x"] for item in items])}

    assert batch_fault(lambda inputs: {"y": inputs["x"] * 2}, batch, items, STRICT) is None


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda x: x - x.mean(axis=0), "item 0 of a batch of 2 differs when run alone"),
        (lambda x: x.reshape(1, -1), "'y' has shape (1, 6) for a batch of 2"),
        (lambda x: x.sum(), "'y' has shape () for a batch of 2"),
    ],
)
def test_a_batch_that_is_more_than_its_items_is_told(law, said):
    items = [{"x": np.full((1, 3), i, np.float32)} for i in range(2)]
    batch = {"x": np.concatenate([item["x"] for item in items])}

    fault = batch_fault(lambda inputs: {"y": np.asarray(law(inputs["x"]))}, batch, items, STRICT)

    assert fault is not None
    assert fault.startswith(said)

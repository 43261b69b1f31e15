from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.stacking import stack_items

LARGE = 10_000


def test_a_single_item_is_not_copied():
    x = np.arange(3)

    stacked = stack_items([{"x": x}])["x"]

    assert stacked.shape == (1, 3)
    assert np.shares_memory(stacked, x)


@given(st.integers(2, 5), st.sampled_from([1, LARGE]), st.booleans())
def test_a_stack_holds_its_items(count, width, one_message):
    body = np.arange(count * width, dtype=np.float32).reshape(count, width)
    arrays = list(body) if one_message else [row.copy() for row in body]

    np.testing.assert_array_equal(stack_items([{"x": array} for array in arrays])["x"], body)


def test_large_arrays_of_one_message_are_not_copied():
    body = np.zeros((4, LARGE), np.float32)

    assert np.shares_memory(stack_items([{"x": row} for row in body])["x"], body)


@pytest.mark.parametrize(
    "pick",
    [
        lambda body: [body[1], body[0]],
        lambda body: [body[0], body[2]],
        lambda body: [body[0], body[0]],
        lambda body: [body[0, ::2], body[1, ::2]],
        lambda body: [body[0], body[1].view(np.int32)],
    ],
    ids=["swapped", "with a gap", "twice the same", "strided", "other dtype"],
)
def test_other_arrays_are_copied(pick):
    body = np.arange(3 * LARGE, dtype=np.float32).reshape(3, LARGE)
    arrays = pick(body)

    stacked = stack_items([{"x": array} for array in arrays])["x"]

    assert not np.shares_memory(stacked, body)
    np.testing.assert_array_equal(stacked, np.stack(arrays))


@pytest.mark.parametrize("other", [{"x": np.zeros(4)}, {"y": np.zeros(3)}, {}])
def test_items_that_differ_are_an_error(other):
    with pytest.raises(ValueError, match=r"different tensors|inhomogeneous"):
        stack_items([{"x": np.zeros(3)}, other])

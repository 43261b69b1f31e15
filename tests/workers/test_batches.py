"""What runs for the items of requests, on a session that keeps count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from workers.batches import ItemRunner
from workers.runtimes.base import RunError
from workers.tensors import Array


class Doubling:
    """Doubles its input; refuses batches with a negative number in them."""

    max_batch = 8
    apart = False

    def __init__(self) -> None:
        self.ran: list[list[float]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.ran.append(inputs["x"][:, 0].tolist())
        if (inputs["x"] < 0).any():
            raise RunError("below zero")
        return {"y": 2 * inputs["x"]}

    def close(self) -> None:
        pass


def items(*numbers: float) -> list[dict[str, Array]]:
    return [{"x": np.array([number])} for number in numbers]


def numbers(answer: object) -> list[float]:
    assert isinstance(answer, dict)
    return list(answer["y"])


@pytest.mark.parametrize(
    ("size", "ran"), [(3, [1, 2, 3]), (4, [1, 2, 3, 3]), (8, [1, 2, 3, 3, 3, 3, 3, 3])]
)
def test_a_batch_is_filled_with_copies_of_its_last_item_up_to_its_size(size, ran):
    session = Doubling()
    answers = ItemRunner(session, batched=True).run(items(1, 2, 3), size)
    assert [numbers(answer) for answer in answers] == [[2], [4], [6]]
    assert session.ran == [ran]


def test_items_of_a_batch_that_fails_run_alone_and_the_copies_do_not():
    session = Doubling()
    good, bad, also_good = ItemRunner(session, batched=True).run(items(1, -1, 3), 4)
    assert (numbers(good), numbers(also_good)) == ([2], [6])
    assert str(bad) == "below zero"
    assert session.ran == [[1, -1, 3, 3], [1], [-1], [3]]


def test_where_items_run_each_for_itself_no_copies_do():
    session = Doubling()
    session.apart = True
    answers = ItemRunner(session, batched=True).run(items(1, 2, 3), 4)
    assert [numbers(answer) for answer in answers] == [[2], [4], [6]]
    assert session.ran == [[1, 2, 3]]

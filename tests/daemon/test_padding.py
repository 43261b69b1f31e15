"""Items of different lengths that share batches."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING, Signature, TensorSpec
from scheduler.daemon.catalog import Catalog
from scheduler.daemon.padding import Padder
from scheduler.daemon.submission import Answer, Submission
from scheduler.wire import Tensors, pack_tensors, unpack_tensors
from tests.daemon.cache_box import Box, a_box
from workers.link import ModelCard
from workers.model import Padding

PLENTY = 1_000_000

# -- in a box


def run(scene: Any, **settings: Any) -> None:
    async def play() -> None:
        async with a_box(pad=(Padding("x", (4, 8), 7, ("y",)),), **settings) as box:
            await scene(box)

    asyncio.run(play())


def test_items_of_different_lengths_share_a_batch_and_get_answers_of_their_own_length() -> None:
    async def scene(box: Box) -> None:
        box.driver.swap_policy("edf", {})
        box.holds = True
        asked = box.ask_all([[1], [2, 2, 2], [3, 3, 3, 3], [], [4], [5] * 2, [6] * 3, [8] * 4])
        await box.until(lambda: box.runs)
        [(_, items)] = box.runs
        box.worker.finish()

        assert [item["x"].tolist() for item in items] == [
            [1, 7, 7, 7],
            [2, 2, 2, 7],
            [3, 3, 3, 3],
            [7, 7, 7, 7],
            [4, 7, 7, 7],
            [5, 5, 7, 7],
            [6, 6, 6, 7],
            [8, 8, 8, 8],
        ]
        for each in asked:
            await each.good()

    run(scene)


def test_an_item_that_is_longer_than_all_lengths_runs_as_it_is() -> None:
    async def scene(box: Box) -> None:
        box.holds = True
        asked = box.ask(range(9))
        await box.until(lambda: box.runs)
        assert box.runs[0][1][0]["x"].shape == (9,)
        box.worker.finish()
        await asked.good()

    run(scene)


def test_the_cache_keeps_answers_of_the_items_own_length() -> None:
    async def scene(box: Box) -> None:
        assert await box.ask([1, 2]).target() == "cpu:0"
        assert await box.ask([1, 2]).target() == "cache"
        assert await box.ask([1, 2, 7]).target() == "cpu:0"  # equal once it is padded

    run(scene)


# -- without a box

TWO = Signature(
    (
        TensorSpec("text", STRING, (None,)),
        TensorSpec("ids", "int64", (None,)),
        TensorSpec("sound", "float16", (2, None)),
    ),
    (TensorSpec("hidden", "float32", (3, None)), TensorSpec("kind", "float32", (None,))),
    True,
)


class Asked:
    """A request for a model, and what became of it."""

    def __init__(self, signature: Signature, **inputs: Any) -> None:
        self.answers: list[Answer] = []
        shapes = tuple(
            (*array.shape, 16) if array.dtype.kind == "S" else array.shape
            for array in inputs.values()
        )
        specs, buffers = pack_tensors(inputs)
        body = memoryview(b"".join(buffers))
        kind = RequestClass("m", None, shapes)
        self.submission = Submission(kind, specs, body, 0, 0, 1.0, False, self.answers.append)

    def answered(self, submission: Submission, **outputs: Any) -> Tensors:
        """What the caller gets when these are the outputs."""
        specs, buffers = pack_tensors(outputs)
        answer = Answer(Outcome.COMPLETED, "", {}, outputs=(specs, memoryview(b"".join(buffers))))
        submission.reply(answer)
        [got] = self.answers
        assert got.outputs is not None
        return unpack_tensors(*got.outputs)


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    pad = (Padding("ids", (8,), -1), Padding("sound", (4, 6), 0.5, ("hidden",)))
    catalog.learn("cpu:0", [ModelCard("m", "", TWO, ("v",), 4, pad=pad)], [])
    return catalog


def two(length: int = 5, text: bytes = b"bc") -> Asked:
    sound = np.arange(2 * length, dtype=np.float16).reshape(2, length)
    return Asked(TWO, text=np.array([b"a", text]), ids=np.array([3, 4]), sound=sound)


def padded_by(padder: Padder, asked: Asked, room_bytes: int = PLENTY) -> Submission:
    [padded] = padder.padded([asked.submission], room_bytes)
    return padded


def test_each_input_is_padded_at_its_free_dimension_to_its_own_lengths(catalog: Catalog) -> None:
    asked = two()
    padded = padded_by(Padder(catalog), asked)

    assert padded.kind == RequestClass("m", None, ((2, 16), (8,), (2, 6)))
    tensors = unpack_tensors(padded.specs, padded.body)
    assert tensors["text"].tolist() == [b"a", b"bc"]
    assert tensors["ids"].tolist() == [3, 4, -1, -1, -1, -1, -1, -1]
    assert tensors["sound"].tolist() == [[0, 1, 2, 3, 4, 0.5], [5, 6, 7, 8, 9, 0.5]]
    hidden = np.arange(18, dtype=np.float32).reshape(3, 6)
    got = asked.answered(padded, hidden=hidden, kind=np.zeros(6, np.float32))
    np.testing.assert_array_equal(got["hidden"], hidden[:, :5])
    assert got["kind"].shape == (6,)


def test_a_text_beside_is_never_cut_to_the_length_of_an_earlier_one(catalog: Catalog) -> None:
    padder = Padder(catalog)
    for text in (b"bc", b"a longer one", b"b"):
        padded = padded_by(padder, two(text=text))
        assert unpack_tensors(padded.specs, padded.body)["text"].tolist() == [b"a", text]


def test_the_item_as_it_was_is_not_kept_in_memory(catalog: Catalog) -> None:
    asked = two()
    tensor = np.ndarray(len(asked.submission.body), np.uint8, bytes(asked.submission.body))
    asked.submission.body, gone = tensor.data, weakref.ref(tensor)
    del tensor
    padded = padded_by(Padder(catalog), asked)
    del asked
    assert gone() is None
    assert len(padded.body) > 0


def test_an_item_of_the_right_length_is_not_touched(catalog: Catalog) -> None:
    asked = Asked(TWO, text=np.array([b"a"]), ids=np.arange(8), sound=np.zeros((2, 4), np.float16))
    assert padded_by(Padder(catalog), asked) is asked.submission


def test_an_item_that_would_exceed_the_memory_for_requests_is_not_padded(catalog: Catalog) -> None:
    asked = two()
    assert padded_by(Padder(catalog), asked, 100) is asked.submission


def test_items_that_together_would_exceed_it_are_not_padded_either(catalog: Catalog) -> None:
    asked = [two() for _ in range(4)]
    one = padded_by(Padder(catalog), asked[0])
    room_bytes = 2 * len(one.body) + len(asked[0].submission.body)
    found = Padder(catalog).padded([each.submission for each in asked], room_bytes)
    assert [each.kind == one.kind for each in found] == [True, True, False, False]


def test_nor_is_one_that_would_be_longer_than_any_tensor(catalog: Catalog) -> None:
    catalog.learn("cpu:0", [replace(catalog.cards["m"], pad=(Padding("ids", (2**33,)),))], [])
    asked = two()
    assert padded_by(Padder(catalog), asked) is asked.submission


def test_models_that_say_nothing_are_not_padded(catalog: Catalog) -> None:
    catalog.learn("cpu:0", [ModelCard("m", "", TWO, ("v",), 4)], [])
    asked = two()
    assert padded_by(Padder(catalog), asked) is asked.submission


def test_a_model_that_is_replaced_is_padded_as_its_new_files_say(catalog: Catalog) -> None:
    padder = Padder(catalog)
    assert padded_by(padder, two()).kind.shapes[2] == (2, 6)
    catalog.learn(
        "cpu:0", [replace(catalog.cards["m"], pad=(Padding("sound", (16,)),), digest="2")], []
    )
    assert padded_by(padder, two()).kind.shapes[1:] == ((2,), (2, 16))


@pytest.mark.parametrize(
    "inputs",
    [
        (TensorSpec("other", "int64", (None,)),),
        (*TWO.inputs, TensorSpec("other", "int64", (None,))),
        (TWO.inputs[0], TensorSpec("other", "int64", (None,)), TWO.inputs[2]),
        (*TWO.inputs[:2], TensorSpec("sound", "float16", (2, 2, None))),
        (*TWO.inputs[:2], TensorSpec("sound", "uint8", (2, None))),
    ],
    ids=["names", "more", "one name", "shape", "dtype"],
)
def test_an_item_that_was_admitted_for_other_files_is_not_padded(
    catalog: Catalog, inputs: tuple[TensorSpec, ...]
) -> None:
    pad = (Padding(inputs[-1].name, (16,)),)
    new = replace(catalog.cards["m"], signature=replace(TWO, inputs=inputs), pad=pad, digest="2")
    asked = two()
    catalog.learn("cpu:0", [new], [])
    assert padded_by(Padder(catalog), asked) is asked.submission


def test_outputs_of_files_that_were_replaced_meanwhile_are_not_cut(catalog: Catalog) -> None:
    asked = two()
    padded = padded_by(Padder(catalog), asked)
    got = asked.answered(padded, hidden=np.zeros((3, 7), np.float32))
    assert got["hidden"].shape == (3, 7)

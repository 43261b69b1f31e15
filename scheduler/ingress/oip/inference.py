"""Runs an inference of the protocol as one request of the scheduler per item of its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.client.call import Call
from scheduler.core.outcomes import Outcome
from scheduler.datatypes import for_model
from scheduler.errors import ExecutionFailed, InvalidInput
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.request import InferRequest, Terms
from scheduler.ingress.oip.snapshot import ModelInfo
from scheduler.result import Result, Timing


@dataclass(frozen=True, slots=True)
class Inferred:
    """A result.

    Attributes:
        outputs: The tensors by name, with a batch dimension if the request had one.
        has_batch: Whether the request had a batch dimension.
        outcome: `completed` or `late`.
        target: Where it ran; several targets are separated by commas.
        variant: The variant that ran; several are separated by commas.
        runtime: The runtime that ran it; several are separated by commas.
        batch: How many requests shared the largest batch.
        timing: Where the time went, for the slowest item.
        laxity_ms: Time left to the deadline; negative if the result is late.
        notes: Further facts about how the outputs were made.
    """

    outputs: dict[str, NDArray[Any]]
    has_batch: bool
    outcome: Outcome
    target: str
    variant: str
    runtime: str
    batch: int
    timing: Timing
    laxity_ms: float
    notes: dict[str, str] = field(default_factory=dict)


Arrays = Mapping[str, NDArray[Any]]
OnEnd = Callable[["Inferred | BaseException"], None]


class Inference:
    """One inference in flight.

    Args:
        box: The scheduler.
        info: The model's signature; the version of the request is one of its variants.
        request: The request.
        terms: Who asks, and by when.
        most_items: How many items its batch may have.
        on_end: Called once with the result or the first error of an item, unless cancelled before.

    Raises:
        LaxityError: The request is invalid or refused at once.
    """

    __slots__ = ("_box", "_calls", "_deadline_ns", "_has_batch", "_on_end", "_results", "_waiting")

    def __init__(
        self,
        box: Box,
        info: ModelInfo,
        request: InferRequest,
        terms: Terms,
        most_items: int,
        on_end: OnEnd,
    ) -> None:
        """Sends every item."""
        _check_outputs(info, request)
        inputs = _for_model(info, request.inputs)
        self._box = box
        self._on_end: OnEnd | None = on_end
        self._deadline_ns = time.monotonic_ns() + int(terms.deadline_ms * 1e6)
        size = _batch_size(info, inputs, most_items)
        self._has_batch = size is not None
        self._waiting = size or 1
        self._results: list[Result | None] = [None] * self._waiting
        calls = [self._call(index, request, inputs, terms, size) for index in range(self._waiting)]
        self._calls = [call.id for call in calls]
        box.start(calls)

    def cancel(self) -> None:
        """Cancels every item; `on_end` is not called any more."""
        self._on_end = None
        for call_id in self._calls:
            self._box.cancel(call_id)

    def _call(
        self, index: int, request: InferRequest, inputs: Arrays, terms: Terms, size: int | None
    ) -> Call:
        if size is not None and size > 1:
            inputs = {n: np.atleast_1d(array)[index : index + 1] for n, array in inputs.items()}
        variant = request.version or None
        take = partial(self._take, index)
        return self._box.call(request.model, inputs, variant, terms, take)

    def _take(self, index: int, answer: Result | BaseException) -> None:
        on_end = self._on_end
        if on_end is None:
            return
        if isinstance(answer, BaseException):
            self.cancel()
            on_end(answer)
            return
        self._results[index] = answer
        self._waiting -= 1
        if not self._waiting:
            self._on_end = None
            results = [result for result in self._results if result is not None]
            left_ns = self._deadline_ns - time.monotonic_ns()
            try:
                inferred = _joined(results, self._has_batch, left_ns / 1e6)
            except ExecutionFailed as error:
                on_end(error)
            else:
                on_end(inferred)


def _check_outputs(info: ModelInfo, request: InferRequest) -> None:
    outputs = {spec["name"] for spec in info.outputs}
    for wanted in request.outputs:
        if wanted.name not in outputs:
            raise InvalidInput(
                f"model {info.name!r} has no output {wanted.name!r}; "
                f"it has {', '.join(sorted(outputs))}"
            )


def _for_model(info: ModelInfo, inputs: Arrays) -> Arrays:
    if not any(array.dtype.hasobject for array in inputs.values()):
        return inputs
    dtypes = {spec["name"]: spec["dtype"] for spec in info.inputs}
    return {name: for_model(name, array, dtypes.get(name)) for name, array in inputs.items()}


def _batch_size(info: ModelInfo, inputs: Arrays, most_items: int) -> int | None:
    """The size of the tensors' batch dimension; None if they have none.

    Tensors that are not inputs of the model are ignored here; the scheduler refuses them by name.
    """
    if not info.batched:
        return None
    ranks = {spec["name"]: len(spec["shape"]) for spec in info.inputs}
    sizes = {
        array.shape[0] if array.ndim == ranks[name] + 1 else None
        for name, array in inputs.items()
        if name in ranks
    }
    if len(sizes) > 1:
        raise InvalidInput("either all inputs have a batch dimension of the same size, or none")
    size = sizes.pop() if sizes else None
    if size is not None and not 1 <= size <= most_items:
        raise InvalidInput(f"a request holds 1 to {most_items} items, not {size}")
    return size


def _joined(results: list[Result], has_batch: bool, laxity_ms: float) -> Inferred:
    first = results[0]
    outputs = first.outputs
    if len(results) > 1:
        outputs = {
            name: _one_array(name, [result.outputs[name] for result in results]) for name in outputs
        }
    return Inferred(
        outputs,
        has_batch,
        Outcome.LATE if any(result.late for result in results) else Outcome.COMPLETED,
        _names([result.target for result in results]),
        _names([result.variant for result in results]),
        _names([result.runtime for result in results]),
        max(result.batch for result in results),
        max((result.timing for result in results), key=lambda timing: timing.total_ns),
        laxity_ms,
        _notes([result.notes for result in results]),
    )


def _one_array(name: str, items: list[NDArray[Any]]) -> NDArray[Any]:
    try:
        return np.concatenate(items)
    except ValueError:
        shapes = sorted({item.shape[1:] for item in items})
        told = " and ".join(str(list(shape)) for shape in shapes[:2])
        raise ExecutionFailed(
            f"output {name!r} differs in shape between the items of the request ({told}), so that "
            "it can't be one tensor; ask for each item by itself"
        ) from None


def _notes(noted: list[dict[str, Any]]) -> dict[str, str]:
    """Joins the notes of all items, each text once."""
    keys = sorted({key for notes in noted for key in notes})
    return {
        key: "; ".join(dict.fromkeys(str(notes[key]) for notes in noted if key in notes))
        for key in keys
    }


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ",".join(sorted(set(names)))

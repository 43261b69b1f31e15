"""Pads the items of models whose owners allow it, so that items of different lengths share batches.

It happens once a request has been admitted, and is undone in its answer: whatever lies between, be
it the core, a device, a cloud or another box, meets only a few shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduler.daemon.catalog import Catalog, misfit
from scheduler.daemon.submission import Answer, Submission
from scheduler.errors import InvalidInput
from scheduler.wire import body_bytes, pack_tensors, unpack_tensors
from workers.link import ModelCard, Packed
from workers.padding import cut, fill, free_axis, padded_length

_REMEMBERED = 1024


class Padder:
    """Pads submissions.

    Args:
        catalog: Knows which models may be padded.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Starts with nothing worked out."""
        self._catalog = catalog
        self._plans: dict[Any, _Plan | None] = {}
        self._revision = catalog.revision

    def padded(self, submissions: Sequence[Submission], room_bytes: int) -> list[Submission]:
        """The submissions with their items padded and their answers cut, where they need it.

        Args:
            submissions: The submissions, of any models.
            room_bytes: How large all items together may be; what would exceed it stays as it is.
        """
        done = []
        for submission in submissions:
            plan = self._plan_of(submission)
            if plan is not None and plan.size <= room_bytes:
                submission = plan.padded(submission)
            room_bytes -= len(submission.body)
            done.append(submission)
        return done

    def _plan_of(self, submission: Submission) -> _Plan | None:
        card = self._catalog.cards.get(submission.kind.model)
        if card is None or not card.pad:
            return None
        if self._revision != self._catalog.revision or len(self._plans) >= _REMEMBERED:
            self._plans.clear()
            self._revision = self._catalog.revision
        key = card.name, *[(name, dtype, *shape) for name, dtype, shape in submission.specs]
        if key not in self._plans:
            self._plans[key] = self._plan(card, submission.specs)
        return self._plans[key]

    def _plan(self, card: ModelCard, specs: list[list[Any]]) -> _Plan | None:
        """What is done with an item; None if it stays as it is."""
        if misfit(card, specs) is not None:  # it was admitted for other files
            return None
        try:
            plan = _Plan(card, specs)
        except InvalidInput:  # it would be longer than any tensor; another box may say so
            return None
        return plan if plan.fills else None


class _Plan:
    """What is done with the items of one list of tensors.

    Attributes:
        fills: What fills the inputs that are padded, by name.
        size: The size of the padded item, in bytes.
    """

    def __init__(self, card: ModelCard, specs: list[list[Any]]) -> None:
        inputs = {spec.name: spec for spec in card.signature.inputs}
        outputs = {spec.name: spec for spec in card.signature.outputs}
        shapes = {name: list(shape) for name, _, shape in specs}
        self.fills: dict[str, float] = {}
        self._cuts: dict[str, tuple[int, int, int]] = {}
        for each in card.pad:
            axis, shape = free_axis(inputs[each.input]), shapes[each.input]
            own, shape[axis] = shape[axis], padded_length(each, shape[axis])
            if own != shape[axis]:
                self.fills[each.input] = each.value
                for name in each.outputs:
                    self._cuts[name] = free_axis(outputs[name]), shape[axis], own
        self._specs = [[name, dtype, shapes[name]] for name, dtype, _ in specs]
        self.size = body_bytes(self._specs)

    def padded(self, submission: Submission) -> Submission:
        body = memoryview(bytearray(self.size))
        padded = unpack_tensors(self._specs, body)
        for name, tensor in unpack_tensors(submission.specs, submission.body).items():
            fill(padded[name], tensor, self.fills.get(name, 0))
        kind = submission.kind
        shapes = [
            tuple(shape) if name in self.fills else known
            for known, (name, _, shape) in zip(kind.shapes, self._specs, strict=True)
        ]

        give = submission.reply  # not the submission, whose own body nobody needs any more

        def reply(answer: Answer) -> None:
            if answer.outputs is not None and self._cuts:
                answer.outputs = self._cut(*answer.outputs)
            give(answer)

        return replace(
            submission,
            kind=kind._replace(shapes=tuple(shapes)),
            specs=self._specs,
            body=body,
            reply=reply,
        )

    def _cut(self, specs: list[list[Any]], body: memoryview) -> Packed:
        tensors = unpack_tensors(specs, body)
        for name, (axis, padded, own) in self._cuts.items():
            # The model's files may have been replaced by others since.
            if name in tensors and tensors[name].shape[axis : axis + 1] == (padded,):
                tensors[name] = cut(tensors[name], axis, own)
        specs, buffers = pack_tensors(tensors)
        return specs, memoryview(b"".join(buffers))

"""Shrinks the inputs of a model for one way: which forms there are, and what they gain."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from scheduler.core.commands import Dispatch
from scheduler.core.forms import Form
from scheduler.core.signature import DTYPES, Signature
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.samples import Recent
from scheduler.encodings import jpeg
from scheduler.encodings.codec import Array, accepted, encoded
from scheduler.encodings.text import FLOAT16, JPEG, text_of
from scheduler.wire import unpack_tensors
from workers.link import ModelCard
from workers.model import Encoding

log = structlog.get_logger()

FIRST_BYTE_NS = {FLOAT16: 2.0, JPEG: 5.0}
"""Assumed time per byte to encode and decode until it is measured: some four times what it takes on
a core of a server."""

FIRST_JPEG_SHARE = 0.25
"""Assumed size of a JPEG, relative to 8 bits per value, until it is measured; at a quality of 90
photographs take 8 to 30 %."""

_FREE_SIZE = 256
"""Assumed size of a free dimension until requests show it."""

_TEXT_BYTES = 32
"""Assumed size of a text until requests show it."""

_WEIGHT = 3
"""The assumptions about a form count as this many samples, so that a single delayed measurement
does not dominate."""

FORGET_NS = 60_000_000_000
"""Measurements are forgotten after this long without use, so that a form found too slow is tried
again."""

_MATERIAL = 0.2
"""A form counts as changed when its figures have moved by more than this share."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A batch whose inputs were shrunk.

    Attributes:
        items: The shrunk inputs of each item, by name: arrays of float16 or vectors of bytes.
        texts: What the receiver needs to decode them, by input.
        took_ns: How long the encoding took.
    """

    items: Sequence[Mapping[str, Array]]
    texts: Mapping[str, str]
    took_ns: int


class _Known:
    """One form, and its measurements."""

    def __init__(self, name: str, encodings: Mapping[str, Encoding], signature: Signature) -> None:
        self.name = name
        self.encodings = encodings
        self.used = 0
        self.unfit = 0
        self._expected = _expected(encodings, signature)
        self._start_anew()

    def _start_anew(self) -> None:
        self._shares, self._byte_nss = Recent(), Recent()
        self._learned_ns: int | None = None
        for _ in range(_WEIGHT):
            self._shares.add(self._expected[0])
            self._byte_nss.add(self._expected[1])

    def learn(self, share: float, byte_ns: float) -> None:
        self._shares.add(share)
        self._byte_nss.add(byte_ns)
        self._learned_ns = time.monotonic_ns()

    def form(self, model: str) -> Form:
        if self._learned_ns is not None and time.monotonic_ns() - self._learned_ns > FORGET_NS:
            self._start_anew()
        return Form(model, self.name, self._shares.quantile(0.5), self._byte_nss.quantile(0.5))


class Shrinking:
    """The smaller forms of one model's inputs over one way.

    The n-th form gives each input the n-th encoding that the model's owner allows and the far end
    can decode, or the last one if there are fewer.

    Args:
        card: The model.
        usable: The names of the encodings that both ends know.
    """

    def __init__(self, card: ModelCard, usable: frozenset[str]) -> None:
        """Nothing is measured yet."""
        self._model = card.name
        allowed = {
            forms.input: found
            for forms in card.shrink
            if (found := [each for each in forms.encodings if each.name in usable])
        }
        self._known: dict[str, _Known] = {}
        for level in range(max(map(len, allowed.values()), default=0)):
            chosen = {name: each[min(level, len(each) - 1)] for name, each in allowed.items()}
            name = ", ".join(f"{input_} as {each.name}" for input_, each in chosen.items())
            self._known[name] = _Known(name, chosen, card.signature)
        if any(e.name == JPEG for known in self._known.values() for e in known.encodings.values()):
            jpeg.load()  # so that the first request does not wait for it
        self._told: tuple[Form, ...] = ()

    @property
    def forms(self) -> tuple[Form, ...]:
        """The current forms; `moved` compares with the ones last read here."""
        self._told = tuple(known.form(self._model) for known in self._known.values())
        return self._told

    def moved(self) -> bool:
        """Whether the figures last given to the scheduler have become too inaccurate."""
        return any(
            abs(now.share - told.share) > _MATERIAL * told.share
            or abs(now.byte_ns - told.byte_ns) > _MATERIAL * told.byte_ns + 0.1
            for told in self._told
            for now in (self._known[told.name].form(self._model),)
        )

    async def shrunk(self, name: str, batch: Sequence[Submission]) -> Shrunk | None:
        """Encodes a batch in a form, in another thread.

        Returns:
            The batch, or None if the values of an input don't fit the form.
        """
        known = self._known[name]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(None, _shrunk, known.encodings, batch)
        except Exception as error:  # a fault in here must not lose a request
            log.error("inputs can't be made smaller", model=self._model, form=name, exc_info=error)
            found = None
        if found is None:
            known.unfit += 1
            known.learn(1.0, 0.0)  # repeated, this shows the form to be useless
        return found

    def learn(self, name: str, size: int, sent: int, took_ns: int) -> None:
        """Learns from an answered batch that was sent in a form.

        Args:
            name: The name of the form.
            size: Size of the original tensors, in bytes.
            sent: Bytes that were sent.
            took_ns: Time for encoding and decoding together.
        """
        known = self._known[name]
        if size:
            known.used += 1
            known.learn(sent / size, took_ns / size)

    def describe(self) -> list[dict[str, Any]]:
        """The forms, their use and their figures, for people and programs."""
        return [
            {
                "model": self._model,
                "form": known.name,
                "batches": known.used,
                "unfit": known.unfit,
                "share": round(form.share, 4),
                "ns_per_byte": round(form.byte_ns, 3),
            }
            for known in self._known.values()
            for form in (known.form(self._model),)
        ]


class Shrinkings:
    """The smaller forms of all models at one target."""

    def __init__(self) -> None:
        """Has no models yet."""
        self._by_model: dict[str, tuple[ModelCard, frozenset[str], Shrinking]] = {}

    def __getitem__(self, model: str) -> Shrinking:
        """The forms of a model."""
        return self._by_model[model][2]

    def allow(self, cards: Iterable[ModelCard | None], undone: frozenset[str]) -> None:
        """Updates the forms that the models' owners allow, keeping measurements where possible.

        Args:
            cards: The models at the target; None for one that is unknown here.
            undone: The names of the encodings that the far end can decode.
        """
        for card in cards:
            if card is None:
                continue
            known = self._by_model.get(card.name)
            is_same = known is not None and (known[0].shrink, known[1]) == (card.shrink, undone)
            if not card.shrink:
                self._by_model.pop(card.name, None)
            elif not is_same:
                usable = undone.intersection(accepted())
                self._by_model[card.name] = card, undone, Shrinking(card, usable)

    @property
    def forms(self) -> tuple[Form, ...]:
        """The current forms of all models, for the scheduler."""
        return tuple(form for _, _, each in self._by_model.values() for form in each.forms)

    def describe(self) -> list[dict[str, Any]]:
        """The forms, their use and their figures, for people and programs."""
        return [told for _, _, each in self._by_model.values() for told in each.describe()]


def shrunk_note(dispatch: Dispatch) -> dict[str, str]:
    """The note on an answer whose inputs were shrunk."""
    return {"shrunk": f"{dispatch.form} for {dispatch.target_id}"}


def _shrunk(encodings: Mapping[str, Encoding], batch: Sequence[Submission]) -> Shrunk | None:
    started_ns = time.monotonic_ns()
    items = []
    for submission in batch:
        tensors = unpack_tensors(submission.specs, submission.body)
        item = {}
        for name, encoding in encodings.items():
            small = encoded(encoding, tensors[name])
            if small is None:
                return None
            item[name] = small
        items.append(item)
    texts = {name: text_of(encoding) for name, encoding in encodings.items()}
    return Shrunk(items, texts, time.monotonic_ns() - started_ns)


def _expected(encodings: Mapping[str, Encoding], signature: Signature) -> tuple[float, float]:
    """The assumed share of bytes left by a form, and its time per byte, until measured."""
    whole = left = work_ns = 0.0
    for spec in signature.inputs:
        count = math.prod(_FREE_SIZE if size is None else size for size in spec.shape)
        size = count * DTYPES.get(spec.dtype, _TEXT_BYTES)
        whole += size
        encoding = encodings.get(spec.name)
        if encoding is None:
            left += size
            continue
        left += 2 * count if encoding.name == FLOAT16 else FIRST_JPEG_SHARE * count
        work_ns += FIRST_BYTE_NS[encoding.name] * size
    return left / whole, work_ns / whole

"""The link between the scheduler and a worker: its messages, and the worker's end.

It carries frames of `scheduler.wire` over a local unix socket. For why it does not use Ray's
channels, see docs/decisions/0001-worker-link.md.

    scheduler -> worker   run {id, model, variant, latest_start_ns, count, in} + the items' tensors;
                          behind `at`, where each item is in shared memory: [pages, start], or nil
                          for those in the body
                          map {pages, ...}: map the shared memory of that number
                          forget {pages}: it will not be used again
                          results_mapped: the worker's memory is read from now on
                          free {at}: these outputs in it may be overwritten
                          tidy: now and then, to free what has not been used since the last one
                          cancel {id}
                          measure {model, variant}: measure an offered variant again
    worker -> scheduler   mapped {pages}: bodies in it need not be sent
                          not_mapped {pages, reason}
                          way {transfer_ns}: first message, only behind an emulated link
                          catalog {models, problems}, offer {...}, progress {done, total, text}
                          withdrawn {variants}: [model, variant] pairs that were offered before
                          results {...}: where the worker's own shared memory is, before first use
                          done {id, execute_ns, out, errors} + the items' tensors; behind `at`,
                          where each item's are in that memory, or nil for those in the body
                          not_run {id, reason}
                          ending {reason}: why the worker's process is about to end
                          telemetry {reading}

All items of a batch have the same tensor specs, which are sent once. Times are CLOCK_MONOTONIC,
which all processes of a box share.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from scheduler.core.offers import Offer
from scheduler.core.signature import DTYPES, STRING, Signature
from scheduler.wire import (
    ALIGNMENT,
    Body,
    FrameLimits,
    Header,
    Tensors,
    body_bytes,
    unpack_tensors,
)
from workers.model import CacheRules, InputForms, Padding
from workers.model_yaml import NAME_PATTERN
from workers.padding import padding_fault

LINK_LIMITS = FrameLimits(header_bytes=4 << 20, body_bytes=(1 << 32) - 1)
SOCKET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A worker's description of a model, so that the scheduler never opens a model file."""

    name: str
    description: str
    signature: Signature
    variants: tuple[str, ...]
    max_batch: int
    digest: str = ""
    cache: CacheRules | None = None
    shrink: tuple[InputForms, ...] = ()
    pad: tuple[Padding, ...] = ()

    @property
    def approximates(self) -> bool:
        """Whether an answer may belong to inputs that differ slightly from the request's."""
        return bool(self.shrink) or (self.cache is not None and self.cache.near is not None)


_CARDS = TypeAdapter(ModelCard)


def unpack_items(
    specs: Any, count: int, body: Body | None, shared: Sequence[Body | None] | None = None
) -> list[Tensors]:
    """Views of the items of a batch.

    Args:
        specs: The tensors of an item.
        count: How many items there are.
        body: The items that were sent, each padded to a multiple of `ALIGNMENT`.
        shared: Each item's bytes if it was not sent; None if all were.
    """
    size = body_bytes(specs)
    step = size + -size % ALIGNMENT
    whole = body if body is not None else memoryview(b"")
    sent = (whole[start : start + size] for start in itertools.count(step=step))
    parts = [None] * count if shared is None else shared
    return [unpack_tensors(specs, next(sent) if part is None else part) for part in parts]


def offer_header(offer: Offer) -> Header:
    """An offer as a message."""
    ladder = [[size, list(samples)] for size, samples in offer.latency_ns.items()]
    energy = [list(metered) for metered in offer.energy_uj.items()]
    return {"t": "offer", **asdict(offer), "latency_ns": ladder, "energy_uj": energy}


def offer_from(header: Header) -> Offer:
    """The offer in a message."""
    fields = {key: value for key, value in header.items() if key != "t"}
    fields["latency_ns"] = {size: tuple(samples) for size, samples in fields["latency_ns"]}
    fields["energy_uj"] = dict(fields["energy_uj"])
    fields["item_shapes"] = tuple(tuple(shape) for shape in fields["item_shapes"])
    return Offer(**fields)


def card_from(fields: Any) -> ModelCard:
    """The model card of a catalog message, which another box may have filled with anything.

    Raises:
        ValueError: It is not a valid model card.
    """
    card = _CARDS.validate_python(fields)
    if card.max_batch < 1:
        raise ValueError(f"max_batch of {card.name!r:.80} is {card.max_batch}")
    for name in (card.name, *card.variants):
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ValueError(f"{name!r:.80} is not a valid name of a model or variant")
    for spec in (*card.signature.inputs, *card.signature.outputs):
        sizes = [size for size in spec.shape if size is not None]
        if spec.dtype not in (*DTYPES, STRING) or min(sizes, default=0) < 0:
            raise ValueError(f"{spec.name!r:.80} is {spec.dtype!r:.80} {spec.shape!r:.80}")
    is_near = card.cache is not None and card.cache.near is not None
    if is_near and [spec.dtype == STRING for spec in card.signature.inputs] != [False]:
        raise ValueError(f"cache of {card.name!r:.80}: 'near' needs exactly one input, not text")
    if (fault := padding_fault(card.pad, card.signature)) is not None:
        raise ValueError(f"{card.name!r:.80}: {fault:.200}")
    return card


Packed = tuple["list[list[Any]]", "memoryview"]
"""The tensor specs of one item and its part of a body."""


def results_from(
    header: Header,
    body: Body | None,
    count: int,
    shared: Callable[[int, int], Body] | None = None,
) -> list[Packed | str]:
    """The outputs of each item of a run, still packed, or what went wrong with it.

    Args:
        header: The `done`.
        body: The outputs that were sent.
        count: How many items the run had.
        shared: Given where an item's outputs are in the worker's memory and their size, gets them.
    """
    errors = dict(header["errors"])
    whole = body if body is not None else memoryview(b"")
    places = iter(header["at"]) if shared is not None and "at" in header else None
    outputs: list[Packed] = []
    offset = 0
    for specs, items in header["out"]:
        size = body_bytes(specs)
        for _ in range(items):
            place = None if places is None else next(places)
            if place is not None and shared is not None:
                outputs.append((specs, shared(place, size)))
                continue
            outputs.append((specs, whole[offset : offset + size]))
            offset += size + -size % ALIGNMENT
    if not errors:
        return list(outputs)
    good = iter(outputs)
    return [errors[i] if i in errors else next(good) for i in range(count)]

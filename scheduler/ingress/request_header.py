"""Reads and checks the header of an `infer` message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.core.requests import (
    DEFAULT_PRIORITY,
    LEAST_WEIGHT,
    LOWEST_PRIORITY,
    MOST_WEIGHT,
    RequestClass,
)
from scheduler.core.signature import STRING
from scheduler.daemon.catalog import Catalog, checked_class
from scheduler.errors import InvalidInput
from scheduler.wire import Body, Header, body_bytes, pack_tensors, unpack_tensors

_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request's tensors, apart from their values.

    Attributes:
        kind: The request's class.
        has_batch: Whether they have a leading batch dimension of 1; the answer then has one too.
        names: The inputs in the signature's order.
        in_order: Whether the request has them in that order.
        size: Their size in the body, in bytes.
        specs: `[name, dtype, shape]` of one item, in the request's order.
        texts: The inputs whose bytes must be UTF-8.
    """

    kind: RequestClass
    has_batch: bool
    names: tuple[str, ...]
    in_order: bool
    size: int
    specs: list[list[Any]]
    texts: tuple[str, ...]


class RequestShapes:
    """Checks the tensors of requests against the models, and remembers the results."""

    def __init__(self, catalog: Catalog) -> None:
        """Starts with nothing remembered."""
        self._catalog = catalog
        self._known: dict[Any, RequestShape] = {}
        self._revision = catalog.revision

    def of(self, header: Header) -> RequestShape:
        """The shape of a request, from its model and tensors.

        Raises:
            InvalidInput: The tensors are malformed or do not fit the model.
            ModelNotFound: There is no such model or variant.
            Unavailable: The box has not read its models yet.
        """
        model, variant, specs = header.get("model"), header.get("variant"), header.get("in")
        if self._revision != self._catalog.revision:
            self._known.clear()
            self._revision = self._catalog.revision
        try:
            key = (model, variant, *((n, d, *s) for n, d, s in specs or ()))
            if (known := self._known.get(key)) is not None:
                return known
        except (TypeError, ValueError):
            key = None  # malformed; the checks below say how
        card = self._catalog.card(model, variant)
        size = body_bytes(specs)
        given: list[list[Any]] = specs or []
        kind, has_batch = checked_class(card, variant, given)
        names = tuple(spec.name for spec in card.signature.inputs)
        items = [[n, d, s[1:]] for n, d, s in given] if has_batch else given
        ordered = [n for n, _, _ in given] == list(names)
        texts = tuple(spec.name for spec in card.signature.inputs if spec.dtype == STRING)
        shape = RequestShape(kind, has_batch, names, ordered, size, items, texts)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = shape
        return shape


def in_order(names: Sequence[str], specs: Any, body: Body) -> tuple[list[list[Any]], Body]:
    """Puts tensors in the order of the model's signature.

    Raises:
        InvalidInput: The body does not match the specs.
    """
    tensors = unpack_tensors(specs, body)
    ordered, buffers = pack_tensors({name: tensors[name] for name in names})
    return ordered, memoryview(b"".join(buffers))


def id_of(header: Header) -> int:
    """The id of a message.

    Raises:
        InvalidInput: The id is not an integer.
    """
    client_id = header.get("id")
    if type(client_id) is not int:
        raise InvalidInput(f"id is an integer that the client chooses, not {client_id!r}")
    return client_id


def urgency(header: Header) -> tuple[int, float, bool]:
    """Priority, weight, and whether a late result is wanted.

    Raises:
        InvalidInput: One of them is out of range, or of the wrong type.
    """
    priority = header.get("priority", DEFAULT_PRIORITY)
    if type(priority) is not int or not 0 <= priority <= LOWEST_PRIORITY:
        raise InvalidInput(
            f"priority is an integer from 0 (first) to {LOWEST_PRIORITY}, not {priority!r}"
        )
    weight = header.get("weight", 1.0)
    if type(weight) not in (int, float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInput(
            f"weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, not {weight!r}"
        )
    late = header.get("late", False)
    if type(late) is not bool:
        raise InvalidInput(f"late is true or false, not {late!r}")
    return priority, float(weight), late


def checked_exact(header: Header) -> bool:
    """Whether the answer must be for exactly the inputs of the request.

    Raises:
        InvalidInput: The field is neither true nor false.
    """
    exact = header["exact"]
    if type(exact) is not bool:
        raise InvalidInput(f"exact is true or false, not {exact!r}")
    return exact

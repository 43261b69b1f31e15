"""Headers, targets and offers as plain msgpack maps, keyed by field name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from scheduler.core.forms import Form
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes
from scheduler.core.target_specs import TargetSpec, Tensors
from scheduler.journal_format.words import (
    MAGIC,
    REST_NAMES,
    FormatError,
    Header,
    JournalledPolicy,
    Target,
    pack,
)

# -- writing


def encode_header(header: Header) -> bytes:
    """Encodes the start of a file: `MAGIC` and the header."""
    named = {
        "version": header.version,
        "run": header.run,
        "part": header.part,
        "wall_ns": header.wall_ns,
        "at_ns": header.at_ns,
        "last_id": header.last_id,
        "policy": [header.policy.name, header.policy.options],
        "limits": _named_fields(header.limits),
        "targets": [[plain_target(target.spec), target.up] for target in header.targets],
        "request": REST_NAMES,
    }
    return MAGIC + pack(named)


def _named_fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def plain_offer(offer: Offer) -> dict[str, Any]:
    """An offer's fields by name."""
    ladders = {"latency_ns": dict(offer.latency_ns), "energy_uj": dict(offer.energy_uj)}
    return {**_named_fields(offer), **ladders}


def plain_target(spec: TargetSpec) -> dict[str, Any]:
    """A target's fields by name."""
    named = {**_named_fields(spec), "offers": [plain_offer(offer) for offer in spec.offers]}
    named["forms"] = [_named_fields(form) for form in spec.forms]
    return named


# -- reading

BROKEN = (
    *(AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
)
"""What may be raised when values are made from valid msgpack with invalid content."""


def decode_header(value: Any) -> Header:
    """Decodes the header that follows `MAGIC`.

    Raises:
        FormatError: It is not a header.
    """
    try:
        if tuple(value["request"]) != REST_NAMES:
            raise FormatError("requests with other fields than this version of laxity knows")
        name, options = value["policy"]
        return Header(
            version=checked(value["version"], str),
            run=checked(value["run"], str),
            part=checked(value["part"], int),
            wall_ns=checked(value["wall_ns"], int),
            at_ns=checked(value["at_ns"], int),
            last_id=checked(value["last_id"], int),
            policy=JournalledPolicy(checked(name, str), dict(options)),
            limits=Limits(**value["limits"]),
            targets=tuple(Target(target_from(spec), bool(up)) for spec, up in value["targets"]),
        )
    except FormatError:
        raise
    except BROKEN as error:
        raise FormatError(f"no header of a journal: {type(error).__name__}: {error}") from None


def checked(value: Any, kind: type) -> Any:
    """Returns the value if it is of exactly that type.

    Raises:
        TypeError: It is not.
    """
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def offer_from(named: Any) -> Offer:
    """Decodes an offer; raises one of `BROKEN` if the fields are invalid."""
    latency_ns = {
        checked(size, int): tuple(checked(sample_ns, int) for sample_ns in samples)
        for size, samples in named["latency_ns"].items()
    }
    for name, kind in (("model", str), ("variant", str), ("rank", int)):
        checked(named[name], kind)
    energy_uj = {
        checked(size, int): checked(energy, int)
        for size, energy in named.get("energy_uj", {}).items()
    }
    made = {
        "latency_ns": latency_ns,
        "energy_uj": energy_uj,
        "item_shapes": shapes_from(named.get("item_shapes", ())),
    }
    return Offer(**{**_frozen(named), **made})


def target_from(named: Any) -> TargetSpec:
    """Decodes a target; raises one of `BROKEN` if the fields are invalid."""
    for name, kind in (("id", str), ("slots", int), ("lead_ns", int)):
        checked(named[name], kind)
    given = {
        **_frozen(named),
        "offers": tuple(map(offer_from, named["offers"])),
        "too_large": tuple(_tensors(*each) for each in named.get("too_large", ())),
        "forms": tuple(Form(**form) for form in named.get("forms", ())),
    }
    return TargetSpec(**given)


def _tensors(model: Any, shapes: Any) -> Tensors:
    return checked(model, str), shapes_from(shapes)


def shapes_from(shapes: Any) -> Shapes:
    """Decodes shapes; raises one of `BROKEN` if they are invalid."""
    return tuple(tuple(checked(size, int) for size in shape) for shape in shapes)


def _frozen(named: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in named.items()}

"""The value types of a configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from scheduler.address import Address, AddressError, parse_address


def absolute(path: Path, info: ValidationInfo) -> Path:
    """Makes a path of a configuration absolute; a relative one starts at the folder of the file.

    Raises:
        ValueError: It starts at an unknown home, or no file can have that name.
    """
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r} has a null byte in it, which no file's name can have")
    base = (info.context or {}).get("base") or Path.cwd()
    try:
        return Path(os.path.normpath(base / path.expanduser()))
    except RuntimeError:
        raise ValueError(
            f"{str(path)!r} starts at a home that is not known; write an absolute path, or begin "
            "with ./ where that is a folder's name"
        ) from None


def _listening_address(value: object) -> Address:
    return value if isinstance(value, Address) else parse_address(str(value))


def one_or_more(value: object) -> object:
    """Wraps a single address in a list, so that it may be written without one."""
    return [value] if isinstance(value, str | int | Address) else value


def written_as(pattern: str, wanted: str) -> AfterValidator:
    """A validator for text that matches a pattern; `wanted` describes the pattern in words."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"{text!r} should be {wanted}")
        return text

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class Unquoted:
    """Marks a value that may hold a secret: error messages must not quote it."""


ConfigPath = Annotated[Path, AfterValidator(absolute)]
# A billion megabytes in bytes, and a billion seconds in nanoseconds, still fit into 64 bits.
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
Seconds = Positive
Cost = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


def _door_address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    text = str(value)
    if ":" not in text:
        raise AddressError(f"{text!r} should be HOST:PORT, such as 127.0.0.1:8700")
    return parse_address(text if "://" in text else f"tcp://{text}")


def as_door(address: Address) -> str:
    """The address of an HTTP or gRPC door as written in a configuration file."""
    return str(address).removeprefix("tcp://")


DoorAddress = Annotated[
    Address,
    PlainValidator(_door_address),
    PlainSerializer(as_door),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1:8700", "tls://0.0.0.0:8743"]}),
]
ListeningAddress = Annotated[
    Address,
    PlainValidator(_listening_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["unix:///run/laxity/laxity.sock"]}),
]


class Section(BaseModel):
    """A section of the configuration: without unknown keys, and immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

"""One kept answer, and its encoding in Redis, to which anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import xxhash

from scheduler.core.signature import TensorSpec
from scheduler.daemon.outputs import check_outputs
from scheduler.errors import InvalidInput
from scheduler.wire import Body

FORMAT = 1
"""Format version; raised whenever an older reader could misread a newer writer's values."""

HEADER_BYTES = 16_000
"""Most bytes that a value may have in addition to its tensors."""

_OVERHEAD_BYTES = 1_000
"""Approximate memory of an entry in addition to its tensors."""

_LONGEST_NAME = 200


class BadValue(ValueError):
    """A value is not an answer to the request; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept answer.

    Attributes:
        specs: `[name, dtype, shape]` of its tensors, without a batch dimension.
        body: Its packed tensors, in memory of their own.
        variant: The model's variant that produced it.
        runtime: The runtime that ran the variant.
    """

    specs: list[list[Any]]
    body: Body
    variant: str
    runtime: str

    @property
    def size(self) -> int:
        """Approximate memory use, in bytes."""
        return len(self.body) + _OVERHEAD_BYTES


def pack(key: bytes, kept: Kept) -> bytes:
    """An answer as a value for Redis."""
    fields = [FORMAT, kept.variant, kept.runtime, kept.specs]
    packed: bytes = msgpack.packb([*fields, _checksum(key, fields, kept.body), kept.body])
    return packed


def unpack(
    key: bytes, value: bytes, outputs: Mapping[str, TensorSpec], variants: frozenset[str]
) -> Kept:
    """Decodes and checks a value from Redis.

    Args:
        key: The key of the request; a value that was packed under another key is refused.
        value: Any bytes at all.
        outputs: The model's outputs, by name.
        variants: The acceptable variants.

    Raises:
        BadValue: The value is not an answer, or not to this request.
    """
    try:
        fields = msgpack.unpackb(value, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise BadValue(f"not msgpack: {error}") from None
    match fields:
        case [int(version), str(variant), str(runtime), list(specs), int(checksum), bytes(body)]:
            pass
        case _:
            raise BadValue("not the fields of an answer")
    if version != FORMAT:
        raise BadValue(f"format {version}, not {FORMAT}")
    if checksum != _checksum(key, fields[:4], body):
        raise BadValue("the checksum is wrong")
    if variant not in variants or len(runtime) > _LONGEST_NAME:
        raise BadValue("it is of another variant")
    try:
        check_outputs(specs, len(body), list(outputs.values()))
    except InvalidInput as error:
        raise BadValue(str(error)) from None
    return Kept(specs, memoryview(body), variant, runtime)


def _checksum(key: bytes, fields: list[Any], body: bytes | memoryview) -> int:
    """A checksum against corruption, not against forgery: see docs/cache.md."""
    digest = xxhash.xxh3_64(key)
    digest.update(msgpack.packb(fields))
    digest.update(body)
    return digest.intdigest()

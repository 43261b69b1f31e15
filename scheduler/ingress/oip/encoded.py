"""Inputs that a client encoded for a slow link, as the tensor's parameter `encoding` says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduler.datatypes import from_bytes
from scheduler.encodings.codec import restoration
from scheduler.errors import InvalidInput
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.ingress.oip.request import EncodedInput, InferRequest, Parameters, flag
from scheduler.ingress.oip.snapshot import ModelInfo

PARAMETER = "encoding"


def encoded_input(
    name: str, datatype: str, shape: list[int], raw: memoryview | bytes, parameters: Parameters
) -> EncodedInput:
    """Reads an input whose parameters name an encoding.

    Raises:
        InvalidInput: The number of bytes does not match datatype and shape.
    """
    array = from_bytes(name, datatype, shape, raw)
    given = array.ravel().tolist() if datatype == "BYTES" else array
    return EncodedInput(parameters[PARAMETER], given)


async def restored(info: ModelInfo, request: InferRequest, most_bytes: int) -> InferRequest:
    """A request with its inputs decoded, in a thread; the wait for one counts as waiting.

    Args:
        info: The model.
        request: The request.
        most_bytes: How large the decoded inputs may be.

    Raises:
        InvalidInput: The model's inputs can't be decoded from these.
        TooLarge: The decoded inputs would be too large.
    """
    asked_ns = time.monotonic_ns()
    found = await asyncio.to_thread(_restored, info, request, most_bytes)
    waited_ns = time.monotonic_ns() - asked_ns - found.restore_ns
    return replace(found, waited_ns=request.waited_ns + waited_ns)


def _restored(info: ModelInfo, request: InferRequest, most_bytes: int) -> InferRequest:
    started_ns = time.monotonic_ns()
    specs: dict[str, Any] = {spec["name"]: spec for spec in info.inputs}
    work = []
    for name, said in request.encoded.items():
        if name not in specs:
            raise InvalidInput(f"model {info.name!r} has no input {name!r}")
        shape, dtype = tuple(specs[name]["shape"]), specs[name]["dtype"]
        work.append(
            restoration(name, said.text, said.value, dtype, shape, most_bytes, info.batched)
        )
    size = sum(each.size for each in work)
    if size > most_bytes:
        raise TooLarge(f"the inputs would have {size} bytes, at most {most_bytes} are taken")
    inputs = {**request.inputs, **{each.name: each.run() for each in work}}
    took_ns = max(1, time.monotonic_ns() - started_ns)
    return replace(request, inputs=inputs, encoded={}, restore_ns=took_ns)


def is_exact(request: InferRequest, headers: Mapping[str, str]) -> bool:
    """Whether the answer must be for exactly these inputs.

    That is so if the caller says so, and if the inputs came encoded: they are never made smaller
    twice.

    Args:
        request: The request, with its inputs decoded.
        headers: HTTP headers or gRPC metadata, with names in lower case.

    Raises:
        InvalidInput: The flag is neither true nor false.
    """
    return flag(request.parameters, headers, "exact") or request.restore_ns > 0

"""Messages over HTTP: JSON with the tensors in it, or as bytes after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from scheduler.daemon.cloud.endpoint import (
    Fault,
    Inference,
    Inferred,
    InputTensor,
    OutputTensor,
    RemoteError,
    RemoteTensor,
    said_by_laxity,
)
from scheduler.datatypes import NATIVE, bytes_of, elements_of, from_list
from scheduler.errors import InvalidInput

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON before the bytes; without it the body is all JSON."""

BINARY_EXTENSION = "binary_tensor_data"
"""Extension listed by servers that accept and return tensors as bytes."""


def binary_request(inference: Inference) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of a request with its tensors as bytes, which are copied once."""
    described = []
    for tensor in inference.inputs:
        own: dict[str, Any] = {"binary_data_size": tensor.size}
        if tensor.encoding:
            own["encoding"] = tensor.encoding
        described.append({**_described(tensor), "parameters": own})
    said = _request(inference, described, is_binary=True)
    parts = [part for tensor in inference.inputs for part in tensor.parts]
    headers = {HEADER_LENGTH: str(len(said)), "Content-Type": "application/octet-stream"}
    return headers, b"".join([said, *parts])


def json_request(inference: Inference) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of a request with its tensors as JSON.

    Raises:
        RemoteError: A value is not finite, which JSON can't express.
    """
    described = [{**_described(tensor), "data": _values(tensor)} for tensor in inference.inputs]
    headers = {"Content-Type": "application/json"}
    return headers, _request(inference, described, is_binary=False)


def _described(tensor: InputTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _request(inference: Inference, inputs: list[dict[str, Any]], is_binary: bool) -> bytes:
    parameters: dict[str, Any] = {"timeout": max(1, int(inference.there_s * 1e6))}
    if inference.exact:
        parameters["exact"] = True
    return orjson.dumps(
        {
            "parameters": parameters,
            "inputs": inputs,
            "outputs": [
                {"name": name, "parameters": {"binary_data": is_binary}}
                for name in inference.outputs
            ],
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _values(tensor: InputTensor) -> Any:
    """The elements of a tensor in row-major order, flat."""
    if tensor.datatype == "BYTES":
        return [each.decode() for part in tensor.parts for each in elements_of(tensor.name, part)]
    array = np.frombuffer(b"".join(tensor.parts), NATIVE[tensor.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RemoteError(
            Fault.INVALID,
            f"{tensor.name!r} has infinities or NaN, which JSON can't express, and the server "
            f"lists no extension {BINARY_EXTENSION}",
            has_gone=False,
        )
    return array


_DIGITS = 20
"""Most digits of a plausible length; Python refuses to parse thousands."""


def inferred(headers: Mapping[str, str], body: bytes, sent: int) -> Inferred:
    """Parses the answer to an inference, with tensors as JSON or as bytes.

    Raises:
        RemoteError: The answer is malformed.
    """
    size = headers.get(HEADER_LENGTH, "")
    end = int(size) if size.isdecimal() and len(size) < _DIGITS else len(body)
    said = json_object(body[:end])
    rest = memoryview(body)[end:]
    outputs: dict[str, OutputTensor] = {}
    offset = 0
    try:
        for output in said["outputs"]:
            shape = tuple(map(int, output["shape"]))
            if "data" in output:
                raw = _bytes(output)
            else:
                length = int(output["parameters"]["binary_data_size"])
                raw = rest[offset : offset + length]
                offset += length
            outputs[output["name"]] = OutputTensor(output["datatype"], shape, raw)
        spent = said.get("parameters") or {}
        return Inferred(outputs, sent, len(body), **said_by_laxity(spent))
    except (InvalidInput, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise RemoteError(Fault.FAILED, f"answers {said!r:.200}, not outputs with data") from None


def _bytes(output: Mapping[str, Any]) -> memoryview:
    array = from_list(output["name"], output["datatype"], output["shape"], output["data"])
    if array.dtype == object:
        return memoryview(bytes_of(array.ravel().tolist()))
    return memoryview(array.tobytes())


def json_object(body: bytes) -> dict[str, Any]:
    """Parses a body as a JSON object.

    Raises:
        RemoteError: It is not one.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        raise RemoteError(Fault.FAILED, f"answers {body[:80]!r}, which is not a JSON object")
    return said


def described_tensors(said: Any) -> tuple[RemoteTensor, ...]:
    """The tensors of a model's metadata."""
    return tuple(
        RemoteTensor(str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
        for each in said
    )

"""Bodies of inference requests and answers: JSON, with tensors in it or beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from scheduler.core.signature import DTYPES, STRING
from scheduler.datatypes import (
    DATATYPES,
    Array,
    bytes_of,
    checked_datatype,
    checked_shape,
    from_bytes,
    from_list,
)
from scheduler.errors import InvalidInput
from scheduler.ingress.http.messages import JSON, Response, json_object
from scheduler.ingress.oip.encoded import PARAMETER, encoded_input
from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.ingress.oip.outputs import OutputTensor
from scheduler.ingress.oip.parameters import echoed, how_it_went
from scheduler.ingress.oip.request import (
    EncodedInput,
    InferRequest,
    ReadRegion,
    WantedOutput,
    boolean,
    integer,
    region_of,
    wanted_output,
)
from scheduler.ingress.oip.snapshot import ModelInfo
from scheduler.wire import MAX_TENSORS

HEADER_LENGTH = "inference-header-content-length"
BINARY = "application/octet-stream"
_LONGEST_ID = 1024


def parsed(
    info: ModelInfo,
    version: str,
    headers: Mapping[str, str],
    body: memoryview,
    json_limit: int,
    read_region: ReadRegion,
) -> InferRequest:
    """Parses the body of a request.

    Args:
        info: The model.
        version: The variant that the path names, or empty.
        headers: Headers with names in lower case.
        body: The body without content coding.
        json_limit: How long the JSON may be.
        read_region: Reads shared memory.

    Raises:
        InvalidInput: The body does not follow the protocol.
        TooLarge: A part exceeds a limit.
    """
    size = json_size(headers, len(body))
    if size is None:
        return _raw_request(info, version, body)
    if size > json_limit:
        raise TooLarge(
            f"the JSON has {size} bytes, at most {json_limit} are read; send tensors as binary "
            "data beside it"
        )
    said = json_object(body[:size])
    parameters = _parameters(said, "the request")
    binary = boolean(parameters, "binary_data_output")
    request_id = said.get("id", "")
    if not isinstance(request_id, str) or len(request_id) > _LONGEST_ID:
        raise InvalidInput(f"id is a string of at most {_LONGEST_ID} characters")
    inputs, encoded = _inputs(said.get("inputs"), body[size:], read_region)
    return InferRequest(
        info.name,
        version,
        request_id,
        parameters,
        inputs,
        _outputs(said.get("outputs"), binary),
        binary,
        encoded,
    )


def parameters_beside(
    headers: Mapping[str, str], body: memoryview, most_bytes: int
) -> Mapping[str, Any]:
    """The parameters of a request that is not parsed yet; none if its JSON is long or compressed.

    Raises:
        InvalidInput: As in `parsed`.
    """
    size = json_size(headers, len(body)) if "content-encoding" not in headers else None
    if size is None or size > most_bytes:
        return {}
    return _parameters(json_object(body[:size]), "the request")


def answer(
    request: InferRequest,
    inferred: Inferred,
    outputs: Sequence[OutputTensor],
) -> Response:
    """Builds the answer to an inference; outputs written to shared memory have no data in it."""
    described = []
    tensors: list[memoryview] = []
    for output in outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if (region := output.wanted.region) is not None:
            entry["parameters"] = region.parameters(len(output.raw))
        elif output.wanted.binary:
            tensors.append(output.raw)
            entry["parameters"] = {"binary_data_size": len(tensors[-1])}
        else:
            entry["data"] = _json_data(output)
        described.append(entry)
    said: dict[str, Any] = {
        "model_name": request.model,
        "model_version": inferred.variant,
        "parameters": {**echoed(request.parameters), **how_it_went(inferred, request)},
        "outputs": described,
    }
    if request.id:
        said["id"] = request.id
    text = orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = _headers(inferred)
    if not tensors:
        return Response(200, (text,), JSON, headers)
    headers.append((HEADER_LENGTH, str(len(text))))
    return Response(200, (text, *tensors), BINARY, headers)


def _headers(inferred: Inferred) -> list[tuple[str, str]]:
    queue_ns, transfer_ns, execute_ns, total_ns = inferred.timing
    timing = (
        f"queue;dur={queue_ns / 1e6:.3f}, transfer;dur={transfer_ns / 1e6:.3f}, "
        f"execute;dur={execute_ns / 1e6:.3f}, total;dur={total_ns / 1e6:.3f}"
    )
    return [
        ("server-timing", timing),
        ("x-laxity-outcome", inferred.outcome.value),
        ("x-laxity-target", inferred.target),
        ("x-laxity-variant", inferred.variant),
        ("x-laxity-left-ms", f"{inferred.laxity_ms:.3f}"),
    ]


def _json_data(output: OutputTensor) -> Any:
    if output.array is None:
        return [text.decode() for text in output.texts]
    return np.ascontiguousarray(output.array).reshape(-1)


def json_size(headers: Mapping[str, str], body_size: int) -> int | None:
    """The size of the JSON; None in raw mode, where there is no JSON."""
    said = headers.get(HEADER_LENGTH)
    if said is None:
        return body_size
    if not said.isascii() or not said.isdecimal() or len(said) > 12 or int(said) > body_size:
        raise InvalidInput(
            f"Inference-Header-Content-Length is {said!r:.40}, the body has {body_size} bytes"
        )
    return int(said) or None


def _parameters(said: Mapping[str, Any], whose: str) -> dict[str, Any]:
    parameters = said.get("parameters", {})
    if not isinstance(parameters, dict) or not all(
        isinstance(value, str | int | float | bool) for value in parameters.values()
    ):
        raise InvalidInput(f"parameters of {whose} should be strings, numbers, true or false")
    return parameters


def _inputs(
    said: Any, tail: memoryview, read_region: ReadRegion
) -> tuple[dict[str, Array], dict[str, EncodedInput]]:
    """The plain inputs, and the encoded ones."""
    if not isinstance(said, list) or not 0 < len(said) <= MAX_TENSORS:
        raise InvalidInput(f"inputs should be a list of 1 to {MAX_TENSORS} tensors")
    arrays: dict[str, Array] = {}
    encoded: dict[str, EncodedInput] = {}
    for tensor in said:
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise InvalidInput("each input is an object with name, datatype, shape, and data")
        name = tensor["name"]
        if name in arrays or name in encoded:
            raise InvalidInput(f"input {name!r} appears twice")
        datatype = checked_datatype(name, tensor.get("datatype"))
        shape = checked_shape(name, tensor.get("shape"))
        parameters = _parameters(tensor, f"input {name!r}")
        raw, tail = _raw(tensor, parameters, tail, read_region)
        if PARAMETER in parameters:
            if raw is None:
                raise InvalidInput(f"input {name!r} is encoded, and needs its data as bytes")
            encoded[name] = encoded_input(name, datatype, shape, raw, parameters)
        elif raw is not None:
            arrays[name] = from_bytes(name, datatype, shape, raw)
        elif "data" in tensor:
            arrays[name] = from_list(name, datatype, shape, tensor["data"])
        else:
            raise InvalidInput(f"input {name!r} has no data")
    if len(tail):
        raise InvalidInput(f"the body has {len(tail)} bytes more than its tensors")
    return arrays, encoded


def _raw(
    tensor: Mapping[str, Any],
    parameters: Mapping[str, Any],
    tail: memoryview,
    read_region: ReadRegion,
) -> tuple[memoryview | None, memoryview]:
    """The bytes of an input, None if its data is JSON, and the rest of the body."""
    region = region_of(parameters)
    if (region is not None or "binary_data_size" in parameters) and "data" in tensor:
        raise InvalidInput(f"input {tensor['name']!r} has data in the JSON and also elsewhere")
    if region is not None:
        return read_region(region), tail
    if "binary_data_size" in parameters:
        size = integer(parameters, "binary_data_size")
        return tail[:size], tail[size:]
    return None, tail


def _outputs(said: Any, binary: bool) -> tuple[WantedOutput, ...]:
    if said is None:
        return ()
    if not isinstance(said, list) or len(said) > MAX_TENSORS:
        raise InvalidInput(f"outputs should be a list of at most {MAX_TENSORS} tensors")
    outputs = []
    for tensor in said:
        if not isinstance(tensor, dict):
            raise InvalidInput("each output is an object with name, and maybe parameters")
        parameters = _parameters(tensor, "an output")
        outputs.append(wanted_output(tensor.get("name"), parameters, binary))
    return tuple(outputs)


def _raw_request(info: ModelInfo, version: str, body: memoryview) -> InferRequest:
    """The request of a raw body, which is the only input of the model."""
    if len(info.inputs) != 1:
        raise InvalidInput(
            f"a raw request is for models of one input; {info.name!r} has {len(info.inputs)}"
        )
    spec = info.inputs[0]
    sizes, dtype = list(spec["shape"]), spec["dtype"]
    if dtype == STRING:
        sizes = [1 if size is None else size for size in sizes]
        body = memoryview(bytes_of([bytes(body)]))
    free = [index for index, size in enumerate(sizes) if size is None]
    if len(free) > 1:
        raise InvalidInput(
            f"a raw request fits at most one free dimension; the input has {len(free)}"
        )
    if free:
        sizes[free[0]] = 1
        sizes[free[0]] = len(body) // max(1, math.prod(sizes) * DTYPES[dtype])
    shape = [1, *sizes] if info.batched else sizes
    array = from_bytes(spec["name"], DATATYPES[dtype], shape, body)
    return InferRequest(info.name, version, "", {}, {spec["name"]: array}, (), True)

"""Converts the messages of an inference from protobuf to the door's own types, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from scheduler.datatypes import (
    Array,
    bytes_of,
    checked_datatype,
    checked_shape,
    from_bytes,
    from_list,
)
from scheduler.errors import InvalidInput
from scheduler.ingress.oip.encoded import PARAMETER, encoded_input
from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.ingress.oip.outputs import OutputTensor
from scheduler.ingress.oip.parameters import echoed, how_it_went
from scheduler.ingress.oip.request import (
    EncodedInput,
    InferRequest,
    ReadRegion,
    region_of,
    wanted_output,
)
from scheduler.texts import MOST_ELEMENTS
from scheduler.wire import MAX_DIMENSIONS, MAX_TENSORS

_RAW = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_LITTLE_BYTES = 64 * 1024
_MOST_PARTS = 4 * MAX_TENSORS
_LONGEST_VARINT = 10
_FIXED = {1: 8, 5: 4}
"""The sizes of the fixed-size wire types, in bytes."""

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def check_beside_tensors(raw: bytes, most_bytes: int) -> None:
    """Checks that a message holds little outside `raw_input_contents`.

    Only tensors as bytes take as much memory as they have on the wire: an empty tensor has 2 bytes
    there and 150 as an object, and a number of one byte becomes an object of its own. So the
    message's fields are measured before any of them is parsed.

    Args:
        raw: The message; a malformed one is left to the parser.
        most_bytes: The most bytes outside `raw_input_contents`.

    Raises:
        TooLarge: There are more, or the message has too many fields.
    """
    if len(raw) <= _LITTLE_BYTES:
        return
    at, beside = 0, 0
    for _ in range(_MOST_PARTS):
        start = at
        tag, at = _varint(raw, at)
        if tag & 7 == 2:
            size, at = _varint(raw, at)
            at += size
        elif tag & 7:
            at += _FIXED.get(tag & 7, 0)
        else:
            _, at = _varint(raw, at)
        beside += 0 if tag == _RAW << 3 | 2 else at - start
        if beside > most_bytes:
            raise TooLarge(
                f"the message has more than {most_bytes} bytes beside raw_input_contents; send "
                "tensors as raw_input_contents"
            )
        if at >= len(raw):
            return
    raise TooLarge(f"the message has more than {_MOST_PARTS} parts")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends; 0 and the message's end if there is none."""
    value = 0
    for index, byte in enumerate(raw[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(raw)


def parsed(message: Any, read_region: ReadRegion) -> InferRequest:
    """Parses a `ModelInferRequest`.

    Raises:
        InvalidInput: The message does not follow the protocol.
    """
    outputs = [wanted_output(o.name, values_of(o.parameters), True) for o in message.outputs]
    if len(outputs) > MAX_TENSORS or not 0 < len(message.inputs) <= MAX_TENSORS:
        raise InvalidInput(f"a request has 1 to {MAX_TENSORS} inputs and at most as many outputs")
    inputs, encoded = _inputs(message, read_region)
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        values_of(message.parameters),
        inputs,
        tuple(outputs),
        True,
        encoded,
    )


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a map of parameters."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in parameters.items()
    }


def answer(request: InferRequest, inferred: Inferred, outputs: Sequence[OutputTensor]) -> Any:
    """Builds the `ModelInferResponse`; outputs written to shared memory have no bytes in it."""
    response = pb.ModelInferResponse(
        model_name=request.model, model_version=inferred.variant, id=request.id
    )
    put(response.parameters, {**echoed(request.parameters), **how_it_went(inferred, request)})
    for output in outputs:
        tensor = response.outputs.add(
            name=output.name, datatype=output.datatype, shape=output.shape
        )
        if (region := output.wanted.region) is None:
            response.raw_output_contents.append(bytes(output.raw))
            continue
        response.raw_output_contents.append(b"")  # clients find an output's bytes by its index
        put(tensor.parameters, region.parameters(len(output.raw)))
    return response


def put(parameters: Any, values: Mapping[str, Any]) -> None:
    """Writes values into a map of parameters."""
    for name, value in values.items():
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int):
            kind = "int64_param" if value < 2**63 else "uint64_param"
            setattr(parameters[name], kind, value)
        elif isinstance(value, float):
            parameters[name].double_param = value
        else:
            parameters[name].string_param = str(value)


def _inputs(
    message: Any, read_region: ReadRegion
) -> tuple[dict[str, Array], dict[str, EncodedInput]]:
    """The plain inputs, and the encoded ones."""
    raw = message.raw_input_contents
    arrays: dict[str, Array] = {}
    encoded: dict[str, EncodedInput] = {}
    used = 0
    for tensor in message.inputs:
        name = tensor.name
        if name in arrays or name in encoded:
            raise InvalidInput(f"input {name!r} appears twice")
        datatype = checked_datatype(name, tensor.datatype)
        shape = checked_shape(name, list(tensor.shape[: MAX_DIMENSIONS + 1]))
        parameters = values_of(tensor.parameters)
        region = region_of(parameters)
        content: memoryview | bytes
        if region is not None:
            if tensor.HasField("contents"):
                raise InvalidInput(f"input {name!r} has both contents and shared memory")
            content = read_region(region)
        elif raw:
            if tensor.HasField("contents"):
                raise InvalidInput(f"input {name!r} has contents beside raw_input_contents")
            if used == len(raw):
                raise InvalidInput(f"raw_input_contents has nothing for input {name!r}")
            content = raw[used]
            used += 1
        elif PARAMETER in parameters:
            raise InvalidInput(f"input {name!r} is encoded: send it in raw_input_contents")
        else:
            arrays[name] = _typed(name, datatype, shape, tensor.contents)
            continue
        if PARAMETER in parameters:
            encoded[name] = encoded_input(name, datatype, shape, content, parameters)
        else:
            arrays[name] = from_bytes(name, datatype, shape, content)
    if used != len(raw):
        raise InvalidInput(f"raw_input_contents has {len(raw)} entries, the inputs need {used}")
    return arrays, encoded


def _typed(name: str, datatype: str, shape: list[int], contents: Any) -> Array:
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidInput(f"input {name!r} is {datatype}: send it in raw_input_contents")
    values = getattr(contents, field)
    if datatype == "BYTES":
        if len(values) > MOST_ELEMENTS:
            raise InvalidInput(f"BYTES tensor {name!r} has more than {MOST_ELEMENTS} elements")
        return from_bytes(name, datatype, shape, bytes_of(list(values)))
    if datatype in ("FP32", "FP64"):
        array = np.array(values, np.float32 if datatype == "FP32" else np.float64)
        return from_bytes(name, datatype, shape, array.tobytes())
    return from_list(name, datatype, shape, list(values))

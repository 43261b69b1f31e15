"""An inference request in the form that both doors share, and the reading of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from scheduler.errors import InvalidInput
from scheduler.tenants import Tenant

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a registered shared-memory region.

    Attributes:
        name: The region's name.
        offset: Where the part begins, in bytes from the region's start.
        size: The part's size in bytes.
    """

    name: str
    offset: int
    size: int

    def parameters(self, size: int) -> dict[str, Any]:
        """The parameters that name it, for so many bytes in it; `region_of` reads them."""
        return {
            "shared_memory_region": self.name,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": size,
        }


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """How the caller wants one output.

    Attributes:
        name: The output's name.
        binary: Whether to send it as bytes beside the JSON; over gRPC always.
        classes: How many of the highest values to send as text in place of the tensor; 0 sends the
            tensor.
        region: The shared memory to write it to; None to send it.
    """

    name: str
    binary: bool = False
    classes: int = 0
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """An input in an encoded form.

    Attributes:
        text: The value of its parameter `encoding`.
        value: An array, or the elements of BYTES.
    """

    text: Any
    value: NDArray[Any] | list[bytes]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """The content of an inference request, apart from its deadline.

    Attributes:
        model: The model's name.
        version: The variant that must run; empty leaves the choice to the policy.
        id: Echoed in the answer.
        parameters: The parameters as sent.
        inputs: The tensors by name, as arrays of the native dtypes; BYTES as objects.
        outputs: The outputs that are wanted; empty for all.
        binary: Whether outputs that are not listed are sent as bytes.
        encoded: Encoded inputs by name; `oip.encoded` decodes them.
        restore_ns: How long decoding took.
        waited_ns: How long it waited to be parsed, if it is long (see `oip.pace`), and for a thread
            to decode its inputs.
    """

    model: str
    version: str
    id: str
    parameters: Parameters
    inputs: dict[str, NDArray[Any]]
    outputs: tuple[WantedOutput, ...] = ()
    binary: bool = False
    encoded: dict[str, EncodedInput] = field(default_factory=dict)
    restore_ns: int = 0
    waited_ns: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """Who asks, by when, and how urgently.

    Attributes:
        tenant: Who asks.
        given_ms: The deadline that the caller gave, in milliseconds.
        deadline_ms: What the door has left of it, from now.
        priority: 0 (first) to 7; None for the tenant's default.
        accept_late: Whether a result after the deadline is wanted.
        exact: Whether the answer must be for exactly the inputs of the request.
        trace: The `traceparent` of the caller; empty if it gave none.
    """

    tenant: Tenant
    given_ms: float
    deadline_ms: float
    priority: int | None = None
    accept_late: bool = False
    exact: bool = False
    trace: str = ""


def integer(parameters: Parameters, name: str) -> int:
    """Reads a parameter that is an integer from 0; 0 if it is not given.

    Raises:
        InvalidInput: It is something else.
    """
    value = parameters.get(name, 0)
    if type(value) is not int or value < 0:
        raise InvalidInput(f"parameter {name!r} is an integer from 0, not {value!r:.80}")
    return value


def boolean(parameters: Parameters, name: str, default: bool = False) -> bool:
    """Reads a parameter that is true or false.

    Raises:
        InvalidInput: It is something else.
    """
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise InvalidInput(f"parameter {name!r} is true or false, not {value!r:.80}")
    return value


def flag(parameters: Parameters, headers: Mapping[str, str], name: str) -> bool:
    """Reads a flag from a parameter, or else from the header `x-laxity-NAME`; false by default.

    Args:
        parameters: The request's parameters.
        headers: HTTP headers or gRPC metadata, with names in lower case.
        name: The parameter's name; the header has hyphens for its underscores.

    Raises:
        InvalidInput: The value is neither true nor false.
    """
    if name in parameters:
        return boolean(parameters, name)
    header = f"x-laxity-{name.replace('_', '-')}"
    said = headers.get(header, "false")
    if said not in ("true", "false"):
        raise InvalidInput(f"the header {header} is true or false, not {said!r:.80}")
    return said == "true"


def region_of(parameters: Parameters) -> Region | None:
    """The shared memory that a tensor's parameters name, if any.

    Raises:
        InvalidInput: The parameters are incomplete or of the wrong type.
    """
    name = parameters.get("shared_memory_region")
    if name is None:
        if "shared_memory_byte_size" in parameters or "shared_memory_offset" in parameters:
            raise InvalidInput("a shared memory size or offset needs shared_memory_region")
        return None
    if not isinstance(name, str) or "shared_memory_byte_size" not in parameters:
        raise InvalidInput("shared_memory_region is a name, and needs shared_memory_byte_size")
    offset = integer(parameters, "shared_memory_offset")
    return Region(name, offset, integer(parameters, "shared_memory_byte_size"))


def wanted_output(name: Any, parameters: Parameters, binary: bool) -> WantedOutput:
    """Reads a requested output.

    Args:
        name: The name as sent.
        parameters: The output's parameters.
        binary: Whether outputs are sent as bytes unless their parameters say otherwise.

    Raises:
        InvalidInput: Name or parameters are wrong.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"an output's name is a string, not {name!r:.80}")
    return WantedOutput(
        name,
        boolean(parameters, "binary_data", binary),
        integer(parameters, "classification"),
        region_of(parameters),
    )


ReadRegion = Callable[[Region], memoryview]
"""Reads the bytes of a part of a shared-memory region."""

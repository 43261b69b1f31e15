"""The interface to a server of the Open Inference Protocol, independent of the transport."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from scheduler.daemon.asyncio_tasks import heed
from scheduler.errors import LaxityError

T = TypeVar("T")


class Fault(enum.Enum):
    """Why a call failed."""

    REFUSED = "refused"
    """The server is overloaded, or the deadline is too short for it; it ran nothing."""

    EXPIRED = "expired"
    """The server reported that it gave up at the deadline."""

    SILENT = "silent"
    """No answer came in time, or the server hung up instead of answering."""

    UNREACHABLE = "unreachable"
    """There is no connection, or it was lost, or the server can't serve now."""

    INVALID = "invalid"
    """The server reports that the request itself is wrong."""

    TOO_LARGE = "too large"
    """The request is larger than the server accepts; it ran nothing."""

    GONE = "gone"
    """The server has no such model, or not for this box."""

    UNKNOWN_CALLER = "unknown caller"
    """The server rejects the box's token or certificate, or requires one."""

    FAILED = "failed"
    """The server tried and failed, or its answer is malformed."""


NOT_RUN = frozenset((Fault.REFUSED, Fault.TOO_LARGE, Fault.GONE, Fault.UNKNOWN_CALLER))
"""Faults that are assumed to cost nothing."""

ANSWERED = frozenset((Fault.EXPIRED, Fault.INVALID, Fault.FAILED))
"""Faults reported by a server that has finished with the request: they cost no further time."""


class RemoteError(LaxityError):
    """A call failed.

    Attributes:
        fault: Why it failed.
        retry_after_s: After how long the server wants a retry; None if it does not say.
        has_gone: Whether anything was sent, or may have been.
    """

    code = "cloud"

    def __init__(
        self,
        fault: Fault,
        message: str,
        retry_after_s: float | None = None,
        *,
        has_gone: bool = True,
    ) -> None:
        """For people and programs."""
        super().__init__(message)
        self.fault = fault
        self.retry_after_s = retry_after_s
        self.has_gone = has_gone


_SHORTEST_SECRET = 8
"""A shorter value is not a key, and may well occur in the server's own words."""


class Masked:
    """Masks the box's secrets in a server's messages, because some servers repeat them.

    Args:
        headers: The headers of every call.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Collects the values and their words."""
        parts = {part for value in headers.values() for part in (value, *value.split())}
        self._secrets = sorted((p for p in parts if len(p) >= _SHORTEST_SECRET), key=len)

    def __call__(self, text: str) -> str:
        """The text with each secret replaced by stars."""
        for secret in reversed(self._secrets):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """A tensor as a server describes it.

    Attributes:
        name: Its name.
        datatype: The protocol's datatype.
        shape: Its shape, including the batch dimension; -1 is a free dimension.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model as a server describes it.

    Attributes:
        name: Its name there.
        versions: Its versions, as far as the server lists them.
        inputs: Its inputs.
        outputs: Its outputs.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[RemoteTensor, ...]
    outputs: tuple[RemoteTensor, ...]


class InputTensor(NamedTuple):
    """An input of a call.

    Attributes:
        name: Its name.
        datatype: The protocol's datatype.
        shape: Its shape.
        parts: Its bytes, possibly in several parts.
        encoding: The encoding that the server must undo, as text; empty for none.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parts: Sequence[Any]
    encoding: str = ""

    @property
    def size(self) -> int:
        """Total size of the parts, in bytes."""
        return sum(map(len, self.parts))


class OutputTensor(NamedTuple):
    """An output of an answer: the protocol's datatype, its shape, its bytes."""

    datatype: str
    shape: tuple[int, ...]
    raw: memoryview


@dataclass(frozen=True, slots=True)
class Inference:
    """A call for an inference.

    Attributes:
        model: The model's name there.
        version: The version; empty for the server's choice.
        inputs: The input tensors.
        outputs: The names of the wanted outputs.
        timeout_s: Time from now until the answer must be here.
        there_s: Time from now until the answer must leave the server.
        exact: Whether the answer must be to exactly these inputs; only for servers that know this.
        trace: The `traceparent` of the call; empty if it is not traced.
    """

    model: str
    version: str
    inputs: Sequence[InputTensor]
    outputs: Sequence[str]
    timeout_s: float
    there_s: float
    exact: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Inferred:
    """An answer.

    Attributes:
        outputs: The outputs, by name.
        sent: Bytes sent.
        received: Bytes received.
        there_ns: Time that the server reports to have taken; None if it reports none.
        restore_ns: Part of that time spent on decoding inputs.
        notes: The server's notes about the outputs.
    """

    outputs: Mapping[str, OutputTensor]
    sent: int
    received: int
    there_ns: int | None
    restore_ns: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


class Endpoint(Protocol):
    """One server. Its methods raise only `RemoteError`."""

    async def live(self, timeout_s: float) -> None:
        """Returns once the server has answered a small call that costs nothing."""

    async def extensions(self, timeout_s: float) -> frozenset[str]:
        """The protocol extensions that the server supports."""

    async def model(self, name: str, timeout_s: float) -> RemoteModel:
        """Describes a model."""

    async def infer(self, inference: Inference) -> Inferred:
        """Runs one inference; cancelling it tells the server."""

    def show(self, headers: Mapping[str, str]) -> None:
        """Sends other headers with every call from now on."""

    def reconnect(self) -> None:
        """Abandons the present connections, because they are dead."""

    async def close(self) -> None:
        """Hangs up."""


async def apart(call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call in a task of its own, because abandoning a connection cancels its calls.

    Raises:
        RemoteError: The connection was abandoned.
    """
    task = asyncio.create_task(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(heed)
        raise
    if task.cancelled():
        raise RemoteError(Fault.UNREACHABLE, "the connection was given up")
    try:
        return task.result()
    finally:
        del task  # its error leads back to this frame, and would keep the call's tensors


def said_by_laxity(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Inferred` that only a laxity box reports."""
    restore_us, shrunk = parameters.get("restore_us"), parameters.get("shrunk")
    return {
        "there_ns": _ns(parameters.get("total_us")),
        "restore_ns": _ns(restore_us) or 0,
        "notes": {"shrunk": shrunk} if isinstance(shrunk, str) else {},
    }


_LONGEST_US = 10**12
"""No call takes longer, whatever a server says."""


def _ns(us: Any) -> int | None:
    if not isinstance(us, int | float) or not math.isfinite(us):
        return None
    return max(0, min(int(us), _LONGEST_US)) * 1000

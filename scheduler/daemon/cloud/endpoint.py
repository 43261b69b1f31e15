"""What is said to a server of the Open Inference Protocol, however it is carried."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from scheduler.errors import LaxityError

T = TypeVar("T")


class Fault(enum.Enum):
    """What became of a call that came to nothing."""

    REFUSED = "refused"
    """The server was asked for too much at once, or for too much haste; it ran nothing."""

    EXPIRED = "expired"
    """The server gave up at the deadline, by its own word."""

    SILENT = "silent"
    """No answer came in time."""

    UNREACHABLE = "unreachable"
    """There is no connection, or there is none any more, or the server can't serve now."""

    INVALID = "invalid"
    """The server says that there is something wrong with the request itself."""

    TOO_LARGE = "too large"
    """The request is more than the server takes; it ran nothing."""

    GONE = "gone"
    """The server has no such model, or not for this box."""

    UNKNOWN_CALLER = "unknown caller"
    """The server does not take the box's token or certificate, or wants one."""

    FAILED = "failed"
    """The server tried and failed, or its answer makes no sense."""


NOT_RUN = frozenset((Fault.REFUSED, Fault.TOO_LARGE, Fault.GONE, Fault.UNKNOWN_CALLER))
"""What is taken not to cost anything."""

ANSWERED = frozenset((Fault.EXPIRED, Fault.INVALID, Fault.FAILED))
"""What the server itself said, and was done with: it costs no time beyond that."""


class RemoteError(LaxityError):
    """A call came to nothing.

    Attributes:
        fault: What became of it.
        retry_after_s: When the server wants to be asked again; None where it does not say.
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
"""What is shorter is no key, and may well be a word of the server's own."""


class Masked:
    """Takes out of a server's words what the box shows it as a secret, which some repeat.

    Args:
        headers: What goes with every call.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Keeps the values, and what they are made of."""
        parts = {part for value in headers.values() for part in (value, *value.split())}
        self._secrets = sorted((p for p in parts if len(p) >= _SHORTEST_SECRET), key=len)

    def __call__(self, text: str) -> str:
        """The same text with stars in their place."""
        for secret in reversed(self._secrets):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """A tensor as a server describes it.

    Attributes:
        name: Its name.
        datatype: The protocol's.
        shape: Its sizes, the batch dimension among them; -1 is a free one.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model as a server describes it.

    Attributes:
        name: What it is called there.
        versions: Those that are there, as far as the server says.
        inputs: What it takes.
        outputs: What it gives.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[RemoteTensor, ...]
    outputs: tuple[RemoteTensor, ...]


class InputTensor(NamedTuple):
    """An input of a call.

    Attributes:
        name: Its name.
        datatype: The protocol's.
        shape: Its sizes.
        parts: Its bytes, in as many parts as they lie in.
        encoding: What the server has to undo, as text; empty for nothing.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parts: Sequence[Any]
    encoding: str = ""

    @property
    def size(self) -> int:
        """Of all parts, in bytes."""
        return sum(map(len, self.parts))


class OutputTensor(NamedTuple):
    """An output of an answer: the protocol's datatype, its sizes, its bytes."""

    datatype: str
    shape: tuple[int, ...]
    raw: memoryview


@dataclass(frozen=True, slots=True)
class Inference:
    """An inference to ask for.

    Attributes:
        model: The model's name there.
        version: Which version; empty for the server's choice.
        inputs: The tensors.
        outputs: The names of the outputs that are wanted.
        timeout_s: When the answer has to be here, from now.
        there_s: When it has to leave there, from now.
        exact: Whether the answer must be one to these very inputs; said to who understands it.
    """

    model: str
    version: str
    inputs: Sequence[InputTensor]
    outputs: Sequence[str]
    timeout_s: float
    there_s: float
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Inferred:
    """An answer.

    Attributes:
        outputs: By name.
        sent: How many bytes went.
        received: How many came.
        there_ns: How long the server says that it took; None where it says nothing.
        restore_ns: How much of that it needed to undo the encodings of inputs.
        notes: What it says of how the outputs came about.
    """

    outputs: Mapping[str, OutputTensor]
    sent: int
    received: int
    there_ns: int | None
    restore_ns: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


class Endpoint(Protocol):
    """One server. Every method raises `RemoteError` alone."""

    async def live(self, timeout_s: float) -> None:
        """Returns when the server has answered something small that costs nothing."""

    async def extensions(self, timeout_s: float) -> frozenset[str]:
        """What the server understands beyond the protocol."""

    async def model(self, name: str, timeout_s: float) -> RemoteModel:
        """Describes a model."""

    async def infer(self, inference: Inference) -> Inferred:
        """One inference; when cancelled, the server is told."""

    def reconnect(self) -> None:
        """Gives up the connections there are, because they lead nowhere."""

    async def close(self) -> None:
        """Hangs up."""


async def apart(call: Coroutine[Any, Any, T]) -> T:
    """What a call gives, in a task of its own: who gives up a connection cancels its calls.

    Raises:
        RemoteError: That happened.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():
        raise RemoteError(Fault.UNREACHABLE, "the connection was given up")
    return task.result()


def said_by_laxity(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What a laxity box says of an answer and no other server does: fields of `Inferred`."""
    restore_us, shrunk = parameters.get("restore_us"), parameters.get("shrunk")
    return {
        "there_ns": _ns(parameters.get("total_us")),
        "restore_ns": _ns(restore_us) or 0,
        "notes": {"shrunk": shrunk} if isinstance(shrunk, str) else {},
    }


def _ns(us: Any) -> int | None:
    return int(us) * 1000 if isinstance(us, int | float) and math.isfinite(us) else None

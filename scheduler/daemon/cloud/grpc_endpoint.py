"""A client of the Open Inference Protocol over gRPC."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from scheduler.daemon.asyncio_tasks import keep_task
from scheduler.daemon.cloud.distrust import distrusted_by_grpc
from scheduler.daemon.cloud.endpoint import (
    Fault,
    Inference,
    Inferred,
    Masked,
    OutputTensor,
    RemoteError,
    RemoteModel,
    RemoteTensor,
    apart,
    said_by_laxity,
)

_SERVICE = "/inference.GRPCInferenceService/"
_RAW_INPUT_TAG = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | 2
"""Field number and wire type; see protobuf's encoding of length-delimited fields."""

_INT_MAX = 2**31 - 1  # the library's largest setting; no message can be longer
_OPTIONS = [
    # A private connection: after an outage it must be new, not the old one from a pool.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", -1),
]
_FAULTS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Fault.REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.EXPIRED,
    grpc.StatusCode.UNAVAILABLE: Fault.UNREACHABLE,
    grpc.StatusCode.CANCELLED: Fault.UNREACHABLE,
    grpc.StatusCode.INVALID_ARGUMENT: Fault.INVALID,
    grpc.StatusCode.OUT_OF_RANGE: Fault.INVALID,
    grpc.StatusCode.NOT_FOUND: Fault.GONE,
    grpc.StatusCode.UNIMPLEMENTED: Fault.GONE,
    grpc.StatusCode.UNAUTHENTICATED: Fault.UNKNOWN_CALLER,
    grpc.StatusCode.PERMISSION_DENIED: Fault.GONE,
}

_SIZE_STATUSES = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE)
_TOO_LARGE = re.compile("larger than max|exceeds maximum size|too large")
"""How the gRPC libraries say that a message is too large: C++ and Go, Java, Rust."""

_DEADLINE_HERE = "Deadline Exceeded"
"""The local library's message when no answer came; a server's own messages differ."""

_UNAVAILABLE_FOR_ONE = {
    "Exceeds maximum queue size": Fault.REFUSED,
    "Request timeout expired": Fault.EXPIRED,
}
"""Triton (2.51.0) sends these with UNAVAILABLE although it is up and takes other requests."""
_TOLD = ("total_us", "restore_us", "shrunk")

Dial = Callable[[list[tuple[str, int]]], grpc.aio.Channel]


class GrpcEndpoint:
    """A server behind gRPC; implements `Endpoint`.

    Args:
        dial: Makes a channel with given options.
        metadata: Sent with every call.
        answer_bytes: The largest answer that is accepted.
    """

    def __init__(self, dial: Dial, metadata: Mapping[str, str], answer_bytes: int) -> None:
        """Connects with the first call."""
        self._dial = dial
        self.show(metadata)
        most = min(answer_bytes, _INT_MAX)
        self._options = [*_OPTIONS, ("grpc.max_receive_message_length", most)]
        self._closing: set[asyncio.Task[None]] = set()
        self._open()

    def show(self, headers: Mapping[str, str]) -> None:
        """Sends other metadata with every call from now on."""
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._masked = Masked(headers)

    def _open(self) -> None:
        channel = self._channel = self._dial(self._options)
        # Serialised by hand: protobuf and gRPC would make two more copies of each large tensor.
        self._infer = channel.unary_unary(
            f"{_SERVICE}ModelInfer", None, pb.ModelInferResponse.FromString
        )
        self._live = channel.unary_unary(
            f"{_SERVICE}ServerLive",
            pb.ServerLiveRequest.SerializeToString,
            pb.ServerLiveResponse.FromString,
        )
        self._server = channel.unary_unary(
            f"{_SERVICE}ServerMetadata",
            pb.ServerMetadataRequest.SerializeToString,
            pb.ServerMetadataResponse.FromString,
        )
        self._model = channel.unary_unary(
            f"{_SERVICE}ModelMetadata",
            pb.ModelMetadataRequest.SerializeToString,
            pb.ModelMetadataResponse.FromString,
        )

    async def live(self, timeout_s: float) -> None:
        """Calls `ServerLive`; see `Endpoint`."""
        await self._call(self._live, pb.ServerLiveRequest(), timeout_s)

    async def extensions(self, timeout_s: float) -> frozenset[str]:
        """Calls `ServerMetadata`; see `Endpoint`."""
        said = await self._call(self._server, pb.ServerMetadataRequest(), timeout_s)
        return frozenset(said.extensions)

    async def model(self, name: str, timeout_s: float) -> RemoteModel:
        """Calls `ModelMetadata`; see `Endpoint`."""
        said = await self._call(self._model, pb.ModelMetadataRequest(name=name), timeout_s)
        return RemoteModel(
            name, tuple(said.versions), _tensors(said.inputs), _tensors(said.outputs)
        )

    async def infer(self, inference: Inference) -> Inferred:
        """Calls `ModelInfer`; see `Endpoint`."""
        message = request_bytes(inference)
        trace = (("traceparent", inference.trace),) if inference.trace else ()
        response = await self._call(self._infer, message, inference.timeout_s, trace)
        raws = response.raw_output_contents
        if len(raws) != len(response.outputs):
            raise RemoteError(
                Fault.FAILED, f"{len(response.outputs)} outputs came with {len(raws)} contents"
            )
        outputs = {
            output.name: OutputTensor(output.datatype, tuple(output.shape), memoryview(raw))
            for output, raw in zip(response.outputs, raws, strict=True)
        }
        received = sum(len(output.raw) for output in outputs.values())
        said = {n: _value(response.parameters[n]) for n in _TOLD if n in response.parameters}
        return Inferred(outputs, len(message), received, **said_by_laxity(said))

    async def _call(
        self,
        method: Callable[..., Awaitable[Any]],
        message: Any,
        timeout_s: float,
        more: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        metadata = (*self._metadata, *more)
        try:
            said = await apart(_said(method(message, timeout=timeout_s, metadata=metadata)))
        except grpc.aio.AioRpcError as error:
            raise _remote_error(error, self._masked) from None
        if said is None:  # gRPC has logged what is wrong with it
            raise RemoteError(
                Fault.FAILED, "answers with something that is not a message of the protocol"
            )
        return said

    def reconnect(self) -> None:
        """Makes a new channel; calls on the old one end."""
        keep_task(self._channel.close(), self._closing)
        self._open()

    async def close(self) -> None:
        """Closes the channel, and waits for abandoned ones."""
        keep_task(self._channel.close(), self._closing)
        await asyncio.gather(*self._closing, return_exceptions=True)


def request_bytes(inference: Inference) -> bytes:
    """Encodes a `ModelInferRequest` while copying the tensors only once.

    A message is the concatenation of its fields, so the large ones are appended to the rest.
    """
    message = pb.ModelInferRequest(model_name=inference.model, model_version=inference.version)
    message.parameters["timeout"].int64_param = max(1, int(inference.there_s * 1e6))
    if inference.exact:
        message.parameters["exact"].bool_param = True
    for tensor in inference.inputs:
        added = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.encoding:
            added.parameters["encoding"].string_param = tensor.encoding
    for name in inference.outputs:
        message.outputs.add(name=name)
    fields = [message.SerializeToString()]
    for tensor in inference.inputs:
        fields.append(_varint(_RAW_INPUT_TAG) + _varint(tensor.size))
        fields.extend(tensor.parts)
    return b"".join(fields)


def _varint(number: int) -> bytes:
    """An integer in protobuf's encoding: seven bits per byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _value(said: Any) -> Any:
    return getattr(said, said.WhichOneof("parameter_choice") or "string_param")


async def _said(call: Awaitable[Any]) -> Any:
    return await call


def _tensors(said: Any) -> tuple[RemoteTensor, ...]:
    return tuple(RemoteTensor(each.name, each.datatype, tuple(each.shape)) for each in said)


def _remote_error(error: grpc.aio.AioRpcError, masked: Masked) -> RemoteError:
    status, details = error.code(), error.details() or ""
    trailing = dict(error.trailing_metadata() or ())
    fault = _FAULTS.get(status, Fault.FAILED)
    if status in _SIZE_STATUSES and _TOO_LARGE.search(details):
        # From the local library it means an answer larger than `answer_bytes`.
        fault = Fault.FAILED if "CLIENT:" in details else Fault.TOO_LARGE
    elif fault is Fault.EXPIRED and details == _DEADLINE_HERE:
        fault = Fault.SILENT
    elif fault is Fault.UNREACHABLE and trailing.get("laxity-code") == "unavailable":
        fault = Fault.REFUSED
    elif fault is Fault.UNREACHABLE:
        meant = (own for said, own in _UNAVAILABLE_FOR_ONE.items() if said in details)
        fault = next(meant, fault)
    # After `infeasible`, another deadline may be tried at once.
    is_infeasible = trailing.get("laxity-code") == "infeasible"
    after_s = None if is_infeasible else _seconds(trailing.get("retry-after"))
    told = distrusted_by_grpc(details) if fault is Fault.UNREACHABLE else None
    return RemoteError(fault, f"{status.name}: {told or masked(details)}", after_s)


def _seconds(text: Any) -> float | None:
    return float(text) if isinstance(text, str) and text.isdecimal() else None

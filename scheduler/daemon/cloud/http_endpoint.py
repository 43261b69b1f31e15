"""A client of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import quote

import aiohttp
import orjson

from scheduler.address import plainly
from scheduler.client.tls import NO_TLS
from scheduler.daemon.asyncio_tasks import keep_task
from scheduler.daemon.cloud.distrust import distrusted
from scheduler.daemon.cloud.endpoint import (
    Fault,
    Inference,
    Inferred,
    Masked,
    RemoteError,
    RemoteModel,
    apart,
)
from scheduler.daemon.cloud.http_messages import (
    BINARY_EXTENSION,
    binary_request,
    described_tensors,
    inferred,
    json_object,
    json_request,
)

_FAULTS = {
    400: Fault.INVALID,
    401: Fault.UNKNOWN_CALLER,
    403: Fault.GONE,
    404: Fault.GONE,
    408: Fault.EXPIRED,
    413: Fault.TOO_LARGE,
    415: Fault.INVALID,
    422: Fault.INVALID,
    429: Fault.REFUSED,
    502: Fault.UNREACHABLE,
    503: Fault.REFUSED,
    504: Fault.EXPIRED,
}
_FAULTS_OF_LIVE = {**_FAULTS, 503: Fault.UNREACHABLE}
"""Faults of the health call: there 503 means that the server is not live."""
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_ERROR_CHARACTERS = 300

Open = Callable[[], aiohttp.ClientSession]


class HttpEndpoint:
    """A server behind HTTP; implements `Endpoint`.

    Args:
        open_session: Makes a session.
        url: The server's URL, up to `/v2`.
        headers: Sent with every call.
        answer_bytes: The largest answer that is accepted.
        binary: Whether tensors are sent as bytes; None asks the server whether it accepts them.
    """

    def __init__(
        self,
        open_session: Open,
        url: str,
        headers: Mapping[str, str],
        answer_bytes: int,
        binary: bool | None = None,
    ) -> None:
        """Connects with the first call."""
        self._open_session = open_session
        self._url = url
        self.show(headers)
        self._answer_bytes = answer_bytes
        self._asks = binary is None
        self._binary = bool(binary)
        self._closing: set[asyncio.Task[None]] = set()
        self._session = open_session()

    def show(self, headers: Mapping[str, str]) -> None:
        """Sends other headers with every call from now on."""
        self._headers = dict(headers)
        self._masked = Masked(headers)

    async def live(self, timeout_s: float) -> None:
        """Gets `/v2/health/live`; see `Endpoint`."""
        await self._ask("GET", "/health/live", timeout_s, faults=_FAULTS_OF_LIVE)

    async def extensions(self, timeout_s: float) -> frozenset[str]:
        """Gets `/v2`; see `Endpoint`."""
        _, body = await self._ask("GET", "", timeout_s)
        said = json_object(body).get("extensions")
        return frozenset(map(str, said)) if isinstance(said, list) else frozenset()

    async def model(self, name: str, timeout_s: float) -> RemoteModel:
        """Gets `/v2/models/NAME`, and `/v2` if the tensor format is unknown; see `Endpoint`."""
        if self._asks:
            self._binary = await self._takes_bytes(timeout_s)
        _, body = await self._ask("GET", f"/models/{quote(name, safe='')}", timeout_s)
        said = json_object(body)
        try:
            versions = tuple(map(str, said.get("versions") or ()))
            tensors = described_tensors(said["inputs"]), described_tensors(said["outputs"])
            return RemoteModel(name, versions, *tensors)
        except (KeyError, TypeError, ValueError):
            raise RemoteError(Fault.FAILED, f"describes {name!r} as {said!r:.200}") from None

    async def infer(self, inference: Inference) -> Inferred:
        """Posts to `/v2/models/NAME/infer`; see `Endpoint`."""
        version = f"/versions/{quote(inference.version, safe='')}" if inference.version else ""
        path = f"/models/{quote(inference.model, safe='')}{version}/infer"
        headers, body = (binary_request if self._binary else json_request)(inference)
        headers = {**headers, "x-request-timeout-ms": f"{inference.there_s * 1e3:.3f}"}
        if inference.trace:
            headers["traceparent"] = inference.trace
        answered, raw = await self._ask("POST", path, inference.timeout_s, headers, body)
        return inferred(answered, raw, len(body))

    async def _takes_bytes(self, timeout_s: float) -> bool:
        """Whether the server lists the extension for tensors as bytes."""
        try:
            return BINARY_EXTENSION in await self.extensions(timeout_s)
        except RemoteError as error:
            if error.fault in (Fault.GONE, Fault.INVALID):
                return False  # the server does not describe itself, so it lists no extension
            raise

    async def _ask(
        self,
        method: str,
        path: str,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        faults: Mapping[int, Fault] = _FAULTS,
    ) -> tuple[Mapping[str, str], bytes]:
        return await apart(self._answer(method, path, timeout_s, headers or {}, body, faults))

    async def _answer(
        self,
        method: str,
        path: str,
        timeout_s: float,
        headers: Mapping[str, str],
        body: bytes | None,
        faults: Mapping[int, Fault],
    ) -> tuple[Mapping[str, str], bytes]:
        try:
            async with self._session.request(
                method,
                f"{self._url}/v2{path}",
                data=body,
                headers={**self._headers, **headers},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                raw = await self._read(response)
                if response.status != 200:
                    fault = faults.get(response.status, Fault.FAILED)
                    raise _remote_error(response, raw, fault, self._masked)
                return response.headers, raw
        except (asyncio.TimeoutError, aiohttp.ClientError, OSError, RuntimeError) as error:
            _forget_way(error)
            raise _why_unanswered(error, timeout_s) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, unless it is too large."""
        limit = self._answer_bytes
        declared = response.content_length
        is_packed = "content-encoding" in response.headers  # then it has more than it declares
        if declared is not None and declared <= limit and not is_packed:
            return await response.read()
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > limit or (declared or 0) > limit:
                raise RemoteError(Fault.FAILED, f"the answer has more than {limit} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def reconnect(self) -> None:
        """Makes a new session; calls on the old one end."""
        keep_task(self._session.close(), self._closing)
        self._session = self._open_session()

    async def close(self) -> None:
        """Closes the session, and waits for abandoned ones."""
        keep_task(self._session.close(), self._closing)
        await asyncio.gather(*self._closing, return_exceptions=True)


def _forget_way(error: BaseException) -> None:
    """Forgets the frames that an error has passed.

    They refer to the call's tensors and, in aiohttp and below, in part to the error: in such a
    cycle the tensors would stay.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__


def _why_unanswered(error: Exception, timeout_s: float) -> RemoteError:
    match error:
        case asyncio.TimeoutError():
            return RemoteError(Fault.SILENT, f"no answer within {timeout_s:.3f} s")
        case aiohttp.ClientPayloadError():
            return RemoteError(Fault.UNREACHABLE, f"the answer broke off: {error}")
        case aiohttp.ServerDisconnectedError() | ConnectionResetError():
            # It may only have closed a connection that was idle for long, as it was used again.
            return RemoteError(Fault.SILENT, f"no answer: {_why_unreachable(error)}")
        case aiohttp.ClientConnectionError() | OSError():
            return RemoteError(Fault.UNREACHABLE, _why_unreachable(error))
        case aiohttp.ClientResponseError():  # its text shows the bytes that came
            return RemoteError(Fault.FAILED, "what answers there does not speak HTTP")
        case _:  # such as that the session was closed
            return RemoteError(Fault.FAILED, f"{type(error).__name__}: {error}")


def _why_unreachable(error: aiohttp.ClientConnectionError | OSError) -> str:
    """The reason for people; aiohttp's own text shows its settings."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        return distrusted(getattr(cause, "verify_message", "") or str(cause))
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        reason = getattr(error.os_error, "reason", None) or str(error.os_error)
        told = f"the TLS handshake failed: {reason}"
        return "it does not speak TLS" if reason in NO_TLS else told
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    host = f"[{error.host}]" if ":" in error.host else error.host
    return f"can't connect to {host}:{error.port}: {plainly(error.os_error)}"


def _remote_error(
    response: aiohttp.ClientResponse, body: bytes, fault: Fault, masked: Masked
) -> RemoteError:
    try:
        told = orjson.loads(body)
        said, code = str(told["error"]), told.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        said, code = body[: 16 * _ERROR_CHARACTERS].decode(errors="replace"), None
    if response.status in _REDIRECTS and (found := response.headers.get("location")):
        where = found.encode(errors="surrogateescape").decode(errors="replace")
        said = f"it redirects to {where}, which is not followed; give the right address as url"
    after = response.headers.get("retry-after", "")
    # After `infeasible`, another deadline may be tried at once.
    retry_after_s = float(after) if after.isdecimal() and code != "infeasible" else None
    message = f"HTTP {response.status}: {masked(said)[:_ERROR_CHARACTERS]}"
    return RemoteError(fault, message, retry_after_s)

"""The HTTP door behind another HTTP server, such as Ray Serve's proxy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping

from scheduler.errors import LaxityError, Unauthorized
from scheduler.ingress.http.door import Caller, HttpDoor
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.messages import Request, Response, as_refusal
from scheduler.ingress.http.reading import declared_size
from scheduler.ingress.http.routes import Routes
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.outcomes import TooLarge, TooSlow, refusal_of
from scheduler.ingress.oip.service import Service
from scheduler.tenants import Access, Tenant


class EmbeddedDoor:
    """Answers requests that another server has received.

    Access rules, limits on bodies and all answers are those of `HttpDoor`; connections and TLS are
    the other server's.

    Args:
        service: The settings and state that the doors share.
        limits: The limits of the door.
        access: The access rules.
        host_names: As for `HttpDoor`.
    """

    def __init__(
        self,
        service: Service,
        limits: HttpLimits,
        access: Access,
        host_names: Iterable[str] = (),
    ) -> None:
        """Open, on the running loop."""
        routes = Routes(service, limits)
        self._door = HttpDoor(limits, access, routes.serve, service.compat, host_names)

    def reload(self, access: Access) -> None:
        """Applies new access rules."""
        self._door.access = access

    async def answer(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: AsyncIterator[bytes],
        *,
        is_local: bool,
    ) -> Response:
        """Answers one request, which is cancelled with the task that waits for the answer.

        Args:
            method: The method in upper case.
            path: The path without the query, percent-encoded.
            headers: Headers in order, with names in lower case; a name may be repeated.
            body: The parts of the body, read as far as they are wanted.
            is_local: Whether the request was sent to a loopback address. Without configured tokens
                or tenants, a request to any other address is refused.
        """
        joined: dict[str, str] = {}
        for name, value in headers:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        try:
            if not is_local and not self._door.access.required:
                raise Unauthorized(
                    "other machines can reach this address, so it needs token_file or tenants_file"
                )
            tenant = self._door.admit(Caller(False, ()), joined)
            whole = await self._read(tenant, joined, body)
        except LaxityError as error:
            return as_refusal(refusal_of(error, self._door.compat))
        request = Request(
            "GET" if method == "HEAD" else method, path, joined, whole, tenant, keep_alive=True
        )
        return await self._serve(request)

    async def _read(
        self, tenant: Tenant, headers: Mapping[str, str], body: AsyncIterator[bytes]
    ) -> memoryview:
        """Reads a body in the time that its size allows; its bytes are counted as held."""
        most = self._door.limits.body_bytes
        declared = min(declared_size(headers), most)
        parts: list[bytes] = []
        held, began_s = 0, time.monotonic()
        try:
            while True:
                allowed_s = self._door.limits.patience_s(max(declared, held))
                left_s = began_s + allowed_s - time.monotonic()
                try:
                    part = await asyncio.wait_for(anext(body, None), left_s)
                except asyncio.TimeoutError:
                    raise TooSlow("the request did not arrive in time") from None
                if part is None:
                    break
                if held + len(part) > most:
                    raise TooLarge(f"the body has more than the {most} bytes that are taken")
                self._door.held.hold(tenant, len(part))
                held += len(part)
                parts.append(part)
        except BaseException:
            self._door.held.release(tenant, held)
            raise
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    async def _serve(self, request: Request) -> Response:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def flush() -> None:  # not of the turn, which refers to this: a cycle would keep the body
            if not answered.done():
                answered.set_result(None)

        turn = Turn(flush, request, self._door.held)
        try:
            self._door.serve(turn)
            await answered
            assert turn.response is not None
            return turn.response
        finally:
            turn.release()
            if turn.on_gone is not None:
                turn.on_gone()

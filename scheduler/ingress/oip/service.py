"""The settings and state that the HTTP and gRPC doors share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.errors import DeadlineExpired, Unavailable
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults, deadline_ms, left_ms, priority
from scheduler.ingress.oip.encoded import is_exact, restored
from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.metadata import statistics_of
from scheduler.ingress.oip.outputs import OutputTensor, output_tensors
from scheduler.ingress.oip.request import InferRequest, Parameters, Terms, flag
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.ingress.oip.snapshot import ModelInfo
from scheduler.tenants import Tenant

_TRACE_CHARS = 256
"""No more of a `traceparent` is read: what it is known for comes first, and is shorter."""


@dataclass(slots=True)
class Service:
    """What a door needs to answer requests.

    Attributes:
        box: The scheduler.
        memory: The shared-memory regions that clients have registered.
        defaults: The deadlines of requests that name none.
        compat: Whose status codes and messages refusals have.
        items: The largest batch dimension of one request.
        log_level: The lowest level that is logged.
        body_bytes: How large the tensors of one request may be.
        draining: Whether new requests are refused.
        no_orders: Why this door accepts no administrator's orders; empty if it does.
    """

    box: Box
    memory: SharedMemory
    defaults: Defaults
    compat: str
    items: int
    log_level: str
    body_bytes: int
    draining: bool = False
    no_orders: str = ""

    async def is_ready(self) -> bool:
        """Whether a target is up and new requests are admitted; not if the box doesn't answer."""
        try:
            return not self.draining and (await self.box.snapshot()).ready
        except Unavailable:
            return False

    async def is_model_ready(self, model: str, version: str, tenant: Tenant) -> bool:
        """Whether a target can run a model, or the version that is not empty, now.

        Raises:
            LaxityError: As in `Box.model`.
        """
        info = await self.box.model(model, version, tenant)
        return (await self.box.snapshot()).model_ready(info, version)

    async def statistics(self, model: str, version: str, tenant: Tenant) -> list[dict[str, Any]]:
        """Statistics of a model, or of all that a tenant may use if it is empty.

        Raises:
            LaxityError: As in `Box.model`.
        """
        if model:
            await self.box.model(model, version, tenant)
        return statistics_of(await self.box.ask("statistics"), tenant, model, version)

    async def signature(
        self,
        model: str,
        version: str,
        parameters: Callable[[], Parameters],
        headers: Mapping[str, str],
        tenant: Tenant,
        grpc_s: float | None = None,
    ) -> tuple[ModelInfo, int]:
        """A model's signature, and how long a request had to wait for it, in nanoseconds.

        A door that has just been started knows none, and the scheduler may be starting as well.

        Args:
            model: The model's name.
            version: The variant that must run, or empty.
            parameters: Returns the request's parameters, as far as they are known yet; called only
                if the signature is not known.
            headers: As in `terms`.
            tenant: As in `terms`.
            grpc_s: As in `terms`.

        Raises:
            DeadlineExpired: The scheduler did not answer before the request's deadline.
            LaxityError: As in `Box.model`, or from `parameters`.
        """
        if (info := self.box.known(model, version)) is not None:
            return info, 0
        began_ns = time.monotonic_ns()
        given_ms = deadline_ms(parameters(), headers, grpc_s, model, tenant, self.defaults)
        try:
            info = await asyncio.wait_for(self.box.model(model, version, tenant), given_ms / 1e3)
        except asyncio.TimeoutError:
            raise DeadlineExpired(
                f"the deadline of {given_ms:g} ms passed before the scheduler could be asked",
                {"budget_ms": given_ms},
            ) from None
        return info, time.monotonic_ns() - began_ns

    def terms(
        self,
        request: InferRequest,
        headers: Mapping[str, str],
        model: str,
        tenant: Tenant,
        grpc_s: float | None = None,
    ) -> Terms:
        """The terms of a request, from its parameters and headers and the defaults.

        Args:
            request: The request.
            headers: The call's headers or metadata, with names in lower case.
            model: The model's name.
            tenant: Who asks.
            grpc_s: Time left to the gRPC deadline, in seconds; None if there is none.

        Raises:
            InvalidInput: A deadline, priority or flag is malformed.
        """
        parameters = request.parameters
        given_ms = deadline_ms(parameters, headers, grpc_s, model, tenant, self.defaults)
        return Terms(
            tenant,
            given_ms,
            left_ms(given_ms, request.waited_ns + request.restore_ns),
            priority(parameters, headers),
            flag(parameters, headers, "accept_late"),
            is_exact(request, headers),
            headers.get("traceparent", "")[:_TRACE_CHARS],
        )

    async def restored(
        self, info: ModelInfo, request: InferRequest, tenant: Tenant, hold: Callable[[int], None]
    ) -> InferRequest:
        """A request with its inputs decoded, whose bytes count from then on.

        Args:
            info: The model.
            request: The request.
            tenant: Who asks.
            hold: Counts bytes that the request takes beside its message.

        Raises:
            Overloaded: The tenant has been told to wait, or there are too many bytes.
            InvalidInput: The model's inputs can't be decoded from these.
            TooLarge: The decoded inputs would be too large.
        """
        self.box.check_rested(tenant)
        request = await restored(info, request, self.body_bytes)
        hold(sum(array.nbytes for array in request.inputs.values()))
        return request

    def delivered(
        self, tenant: Tenant, request: InferRequest, inferred: Inferred
    ) -> list[OutputTensor]:
        """The outputs that a request wants, after writing those wanted in shared memory to it.

        Raises:
            InvalidInput: Classes are wanted of an output that is text or empty, or a region is too
                small, not registered or can't be written.
        """
        outputs = output_tensors(request, inferred)
        for output in outputs:
            if (region := output.wanted.region) is not None:
                self.memory.write(tenant, region, output.raw)
        return outputs

"""What both doors are told by the configuration, and share while they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults, deadline_ms, left_ms, priority
from scheduler.ingress.oip.encoded import is_exact
from scheduler.ingress.oip.inference import Inferred, Terms
from scheduler.ingress.oip.outputs import OutputTensor, output_tensors
from scheduler.ingress.oip.request import InferRequest, flag
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import Tenant


@dataclass(slots=True)
class Service:
    """What answers need.

    Attributes:
        box: The scheduler.
        memory: The regions that clients have registered.
        defaults: The deadlines of requests that name none.
        compat: Whose status codes and messages refusals have.
        items: The batch dimension that one request may have.
        log_level: The least severe message that is logged.
        body_bytes: How large the tensors of one request may be.
        draining: Whether nothing new is begun.
        no_orders: Why nothing can be changed here; empty where it can.
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

    def terms(
        self,
        request: InferRequest,
        headers: Mapping[str, str],
        model: str,
        tenant: Tenant,
        grpc_s: float | None = None,
    ) -> Terms:
        """How urgently a request wants its answer, by what it says and what goes without saying.

        Args:
            request: What was asked.
            headers: The call's headers or metadata, in lower case.
            model: The model's name.
            tenant: Who asks.
            grpc_s: What is left of the gRPC deadline, in seconds; None without one.

        Raises:
            InvalidInput: Something that it says is no deadline, priority or flag.
        """
        parameters = request.parameters
        given_ms = deadline_ms(parameters, headers, grpc_s, model, tenant, self.defaults)
        return Terms(
            tenant,
            left_ms(given_ms, request.waited_ns + request.restore_ns),
            priority(parameters, headers),
            flag(parameters, headers, "accept_late"),
            is_exact(request, headers),
        )

    def delivered(
        self, tenant: Tenant, request: InferRequest, inferred: Inferred
    ) -> list[OutputTensor]:
        """The outputs that a request wants; those that it wants in shared memory are there.

        Raises:
            InvalidInput: Classes are wanted of something that can't be ordered, or a region is too
                small or not registered.
        """
        outputs = output_tensors(request, inferred)
        for output in outputs:
            if (region := output.wanted.region) is not None:
                self.memory.write(tenant, region, output.raw)
        return outputs

"""Admission: turns messages into requests, for every door in the scheduler's own process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.daemon.tracing.traces import Traces
from scheduler.errors import InvalidInput, Overloaded, RequestEnded, Unavailable
from scheduler.ingress.quotas import Quotas
from scheduler.ingress.request_header import (
    RequestShape,
    RequestShapes,
    checked_exact,
    in_order,
    urgency,
)
from scheduler.ingress.statistics import Statistics
from scheduler.tenants import OWNER, UNCOUNTED, Tenant
from scheduler.texts import check_utf8
from scheduler.wire import Body, Header, checked_budget_ns, unpack_tensors


class Admission:
    """Checks requests, enforces the quotas of tenants, and counts the outcomes of requests.

    Args:
        driver: Supplies catalog, limits and clock.
        max_budget_ns: The longest budget of a request.

    Attributes:
        quotas: What each tenant holds.
        statistics: How requests ended.
        traces: Traces some requests; None for none.
    """

    def __init__(self, driver: Driver, max_budget_ns: int) -> None:
        """Starts with no requests, and every model loaded."""
        self.quotas = Quotas(driver.core.limits)
        self.statistics = Statistics()
        self.traces: Traces | None = None
        self._driver = driver
        self._max_budget_ns = max_budget_ns
        self._shapes = RequestShapes(driver.catalog)
        self._unloaded: set[str] = set()

    def submission(
        self,
        header: Header,
        body: Body | None,
        tenant: Tenant,
        reply: Callable[[Answer], None],
        forwarded: bool = False,
        count_out: Callable[[], None] | None = None,
    ) -> Submission:
        """Builds the request that an `infer` message asks for.

        Args:
            header: The message.
            body: Its tensors; None if there was no memory for them.
            tenant: Who asks.
            reply: Called once, with the answer.
            forwarded: Whether another box forwarded the request, which then runs on this box.
            count_out: The result of an earlier `count_in`. It is called when the request ends, but
                not if this method raises.

        Raises:
            InvalidInput: The message is wrong.
            ModelNotFound: The model does not exist, or not for this tenant.
            Unavailable: The model has been unloaded.
            Overloaded: The box or the tenant holds too much already.
            Forbidden: The tenant may not ask for that.
        """
        if tenant.name not in UNCOUNTED:
            self.check(header, tenant)
        budget_ns = checked_budget_ns(
            header.get("budget_ns"), self._max_budget_ns, "limits.max_budget_s"
        )
        shape = self._shapes.of(header)
        try:
            return self._taken_in(
                header, body, tenant, reply, forwarded, count_out, budget_ns, shape
            )
        except RequestEnded:
            self.statistics.note_refused(shape.kind.model, shape.kind.variant)
            raise

    def _taken_in(
        self,
        header: Header,
        body: Body | None,
        tenant: Tenant,
        reply: Callable[[Answer], None],
        forwarded: bool,
        count_out: Callable[[], None] | None,
        budget_ns: int,
        shape: RequestShape,
    ) -> Submission:
        """The rest of `submission`, once model and tensors are checked."""
        model, variant = shape.kind.model, shape.kind.variant
        self._check_loaded(model)
        priority, weight, late = urgency(header)
        if body is None:
            most = self._driver.core.limits.bytes
            raise Overloaded(f"requests hold {most} bytes already (limits.queue_mb)")
        kind = shape.kind._replace(local=True) if forwarded else shape.kind
        if "exact" in header and checked_exact(header):
            kind = kind._replace(exact=self._driver.catalog.cards[model].approximates)
        counted = None
        if tenant.name not in UNCOUNTED:
            priority = tenant.priority(header.get("priority"))
            if count_out is None:
                counted = count_out = self.count_in(tenant, len(body))
        try:
            specs, body = _as_one_item(shape, header["in"], body)
        except InvalidInput:
            if counted is not None:
                counted()
            raise
        now_ns = self._driver.clock_ns()
        traces, trace = self.traces, None
        if traces is not None:
            trace = traces.begin(header.get("trace"), model, budget_ns)

        def ended(answer: Answer) -> None:
            if count_out is not None:
                count_out()
            self.statistics.note(model, variant, answer)
            if trace is not None and traces is not None:
                traces.end(trace, answer)
            if shape.has_batch and answer.outputs is not None:
                answer.outputs = _with_batch(*answer.outputs)
            reply(answer)

        return Submission(
            kind,
            specs,
            body,
            now_ns + budget_ns,
            priority,
            weight,
            late,
            ended,
            budget_ns,
            "" if trace is None else trace.parent,
        )

    def check(self, header: Header, tenant: Tenant) -> None:
        """Checks that a tenant may ask for a model.

        Raises:
            Forbidden: The tenant may not run inferences.
            ModelNotFound: The model does not exist for this tenant.
        """
        tenant.check_scope("infer")
        self._check_model(header, tenant)

    def _check_model(self, header: Header, tenant: Tenant) -> None:
        """Checks access before the catalog is asked, whose errors name other tenants' models."""
        catalog = self._driver.catalog
        tenant.check_model(str(header.get("model")), catalog if catalog.problems else None)

    def _check_loaded(self, model: str) -> None:
        if model in self._unloaded:
            raise Unavailable(f"model {model!r} has been unloaded on this box")

    @property
    def most_bytes(self) -> int:
        """The most bytes that the tensors of waiting requests may take."""
        return self._driver.core.limits.bytes

    def item(
        self, header: Header, body: Body, tenant: Tenant
    ) -> tuple[RequestShape, list[list[Any]], Body]:
        """Checks the tensors of a durable task, which may outlive its connection.

        Returns:
            The shape of the request, and the specs and bytes of its item.

        Raises:
            InvalidInput: The message is wrong.
            ModelNotFound: The model does not exist, or not for this tenant.
            Unavailable: The model has been unloaded.
        """
        self._check_model(header, tenant)
        shape = self._shapes.of(header)
        self._check_loaded(shape.kind.model)
        return shape, *_as_one_item(shape, header["in"], body)

    def count_in(self, tenant: Tenant, size: int) -> Callable[[], None]:
        """Counts a request against a tenant's quota; returns the call that counts it out.

        Raises:
            Overloaded: The tenant holds too much already, or exceeds its rate.
        """
        if tenant.name in UNCOUNTED:
            return lambda: None
        self.quotas.admit(tenant, size, self._driver.clock_ns())
        return partial(self.quotas.release, tenant, size)

    def is_loaded(self, model: str) -> bool:
        """Whether requests for a model are accepted."""
        return model not in self._unloaded

    def unload(self, model: str) -> None:
        """Refuses requests for a model from now on; it stays in the workers' memory.

        Raises:
            ModelNotFound: There is no such model.
        """
        self._unloaded.add(self._driver.catalog.card(model).name)

    def load(self, model: str) -> None:
        """Accepts requests for a model again.

        Raises:
            ModelNotFound: There is no such model.
        """
        self._unloaded.discard(self._driver.catalog.card(model).name)

    def describe_models(self, tenant: Tenant = OWNER) -> dict[str, Any]:
        """The part of the catalog that a tenant may see, with whether each model is `loaded`."""
        described = self._driver.catalog.describe()
        models = [
            {**each, "loaded": each["name"] not in self._unloaded}
            for each in described["models"]
            if tenant.sees(each["name"])
        ]
        problems = [each for each in described["problems"] if tenant.sees(each["model"])]
        return {"models": models, "problems": problems}


def _as_one_item(shape: RequestShape, given: Any, body: Body) -> tuple[list[list[Any]], Body]:
    """Reorders tensors as in the signature, and drops their batch dimension."""
    for name in shape.texts:
        check_utf8(name, unpack_tensors(given, body)[name])
    if len(body) == shape.size and shape.in_order:
        return shape.specs, body
    specs, body = in_order(shape.names, given, body)
    if shape.has_batch:
        specs = [[name, dtype, sizes[1:]] for name, dtype, sizes in specs]
    return specs, body


def _with_batch(specs: list[list[Any]], body: memoryview) -> tuple[list[list[Any]], memoryview]:
    return [[name, dtype, [1, *shape]] for name, dtype, shape in specs], body

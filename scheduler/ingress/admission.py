"""From a message to a request: what every door of the scheduler's own process asks of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
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
    """Checks requests, counts what tenants hold, and counts how requests end.

    Args:
        driver: Takes the requests.
        max_budget_ns: The longest deadline.

    Attributes:
        quotas: What tenants hold.
        statistics: How requests ended.
    """

    def __init__(self, driver: Driver, max_budget_ns: int) -> None:
        """Nothing has been asked yet."""
        self.quotas = Quotas(driver.core.limits)
        self.statistics = Statistics()
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
        """The request that an `infer` message asks for.

        One that another box has forwarded stays here. One that has been counted in already, by
        `count_in`, is counted out at its end, unless this raises.

        Raises:
            InvalidInput: Something in it is wrong.
            ModelNotFound: The model is not there, or not for this tenant.
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
        """What `submission` gives for a request whose model and tensors make sense."""
        model, variant = shape.kind.model, shape.kind.variant
        if model in self._unloaded:
            raise Unavailable(f"model {model!r} has been unloaded on this box")
        priority, weight, late = urgency(header)
        if body is None:
            raise Overloaded(f"requests hold {self._driver.core.limits.bytes} bytes already")
        kind = shape.kind._replace(local=True) if forwarded else shape.kind
        if "exact" in header and checked_exact(header) and self._approximates(model):
            kind = kind._replace(exact=True)
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

        def ended(answer: Answer) -> None:
            if count_out is not None:
                count_out()
            self.statistics.note(model, variant, answer)
            if shape.has_batch and answer.outputs is not None:
                answer.outputs = _with_batch(*answer.outputs)
            reply(answer)

        return Submission(
            kind, specs, body, now_ns + budget_ns, priority, weight, late, ended, budget_ns
        )

    def check(self, header: Header, tenant: Tenant) -> None:
        """Nothing, where a tenant may ask for a model.

        Raises:
            Forbidden: The tenant may not ask for that.
            ModelNotFound: The model is not there for this tenant.
        """
        tenant.check_scope("infer")
        self._check_model(header, tenant)

    def _check_model(self, header: Header, tenant: Tenant) -> None:
        """For a model that is not there the catalog's words name others: not for all to know."""
        catalog = self._driver.catalog
        tenant.check_model(str(header.get("model")), catalog.cards if catalog.problems else None)

    def _approximates(self, model: str) -> bool:
        return self._driver.catalog.cards[model].approximates

    @property
    def most_bytes(self) -> int:
        """The memory that there is for tensors which wait."""
        return self._driver.core.limits.bytes

    def item(
        self, header: Header, body: Body, tenant: Tenant
    ) -> tuple[RequestShape, list[list[Any]], Body]:
        """The checked tensors of a message that is answered later than its connection lasts.

        Raises:
            InvalidInput: Something in it is wrong.
            ModelNotFound: The model is not there, or not for this tenant.
            Unavailable: The model has been unloaded.
        """
        self._check_model(header, tenant)
        shape = self._shapes.of(header)
        if not self.is_loaded(shape.kind.model):
            raise Unavailable(f"model {shape.kind.model!r} has been unloaded on this box")
        return shape, *_as_one_item(shape, header["in"], body)

    def count_in(self, tenant: Tenant, size: int) -> Callable[[], None]:
        """Counts something in that a tenant has brought; what is returned counts it out.

        Raises:
            Overloaded: The tenant holds too much already, or came too often.
        """
        if tenant.name in UNCOUNTED:
            return lambda: None
        self.quotas.admit(tenant, size, self._driver.clock_ns())
        return partial(self.quotas.release, tenant, size)

    def is_loaded(self, model: str) -> bool:
        """Whether requests for a model are taken."""
        return model not in self._unloaded

    def unload(self, model: str) -> None:
        """Takes no more requests for a model; it stays in the workers' memory.

        Raises:
            ModelNotFound: There is no such model.
        """
        self._unloaded.add(self._driver.catalog.card(model).name)

    def load(self, model: str) -> None:
        """Takes requests for a model again.

        Raises:
            ModelNotFound: There is no such model.
        """
        self._unloaded.discard(self._driver.catalog.card(model).name)

    def describe_models(self, tenant: Tenant = OWNER) -> dict[str, Any]:
        """The catalog as a tenant may see it, with whether each model is `loaded`."""
        described = self._driver.catalog.describe()
        models = [
            {**each, "loaded": each["name"] not in self._unloaded}
            for each in described["models"]
            if tenant.sees(each["name"])
        ]
        problems = [each for each in described["problems"] if tenant.sees(each["model"])]
        return {"models": models, "problems": problems}


def _as_one_item(shape: RequestShape, given: Any, body: Body) -> tuple[list[list[Any]], Body]:
    """The tensors in the signature's order, without a batch dimension."""
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

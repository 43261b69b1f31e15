"""`POST …/infer`: the path of a request through the HTTP door and back."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial

from scheduler.errors import SHUTTING_DOWN, Unavailable
from scheduler.ingress.http.coding import decoded
from scheduler.ingress.http.inference import answer, json_size, parameters_beside, parsed
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.messages import Response
from scheduler.ingress.http.responder import THREAD_BYTES, Responder
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.inference import Inference, Inferred
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.ingress.oip.pace import Pace
from scheduler.ingress.oip.request import InferRequest
from scheduler.ingress.oip.snapshot import ModelInfo


class InferResponder:
    """Answers inference requests.

    Args:
        responder: Gives turns their answers.
        limits: The limits of the door.
    """

    def __init__(self, responder: Responder, limits: HttpLimits) -> None:
        """Starts with no requests."""
        self._responder = responder
        self._service = responder.service
        self._limits = limits
        self._pace = Pace()

    def serve(self, turn: Turn, model: str, version: str) -> None:
        """Answers one request; without a task if the model is known and the body not compressed."""
        service, headers = self._service, turn.request.headers
        if service.draining:
            self._responder.refuse(turn, Unavailable(SHUTTING_DOWN))
            return
        self._pace.note(turn.request.tenant)
        info = service.box.known(model, version)
        if info is None or "content-encoding" in headers:
            self._responder.start(turn, self._prepare(turn, model, version))
            return
        try:
            if self._is_long(turn):
                self._responder.start(turn, self._begin_in_turn(turn, info, version))
            else:
                self._begin(turn, info, version)
        except Exception as error:
            self._responder.refuse(turn, error)

    async def _prepare(self, turn: Turn, model: str, version: str) -> None:
        request, began_ns = turn.request, time.monotonic_ns()
        tenant, headers = request.tenant, request.headers
        tenant.check_model(model)
        box = self._service.box
        beside = partial(parameters_beside, headers, request.body, THREAD_BYTES)
        info, _ = await self._service.signature(model, version, beside, headers, tenant)
        if coding := request.headers.get("content-encoding"):
            box.check_rested(request.tenant)
            turn.take_body(await self._decoded(request.body, coding))
        waited_ns = time.monotonic_ns() - began_ns
        if self._is_long(turn):
            await self._begin_in_turn(turn, info, version, waited_ns)
        else:
            self._begin(turn, info, version, waited_ns)

    def _is_long(self, turn: Turn) -> bool:
        request = turn.request
        size = json_size(request.headers, len(request.body)) or 0
        return self._pace.holds(request.tenant, size)

    async def _begin_in_turn(
        self, turn: Turn, info: ModelInfo, version: str, before_ns: int = 0
    ) -> None:
        async with self._pace.turn(turn.request.tenant) as waited_ns:
            self._begin(turn, info, version, before_ns + waited_ns)

    async def _decoded(self, body: memoryview, coding: str) -> memoryview:
        limit = self._limits.body_bytes
        if len(body) < THREAD_BYTES:
            with contextlib.suppress(TooLarge):  # a small body may decompress to a large one
                return decoded(body, coding, min(limit, THREAD_BYTES))
        whole: memoryview = await self._responder.apart(decoded, body, coding, limit)
        return whole

    def _begin(self, turn: Turn, info: ModelInfo, version: str, waited_ns: int = 0) -> None:
        service, asked, tenant = self._service, turn.request, turn.request.tenant
        tenant.check_model(info.name)
        reader = service.memory.reader(tenant, service.body_bytes, turn.hold_beside)
        json_bytes = self._limits.json_bytes
        request = parsed(info, version, asked.headers, asked.body, json_bytes, reader)
        request = replace(request, waited_ns=waited_ns) if waited_ns else request
        if request.encoded:
            self._responder.start(turn, self._restore(turn, info, request))
        else:
            self._ask(turn, info, request)

    async def _restore(self, turn: Turn, info: ModelInfo, request: InferRequest) -> None:
        tenant, hold = turn.request.tenant, turn.hold_beside
        self._ask(turn, info, await self._service.restored(info, request, tenant, hold))

    def _ask(self, turn: Turn, info: ModelInfo, request: InferRequest) -> None:
        service, asked = self._service, turn.request
        terms = service.terms(request, asked.headers, info.name, asked.tenant)

        def ended(inferred: Inferred | BaseException) -> None:
            if isinstance(inferred, BaseException):
                self._responder.refuse(turn, inferred)
                return
            try:
                self._responder.finish(turn, self._answer(turn, request, inferred))
            except Exception as error:
                self._responder.refuse(turn, error)

        inference = Inference(service.box, info, request, terms, service.items, ended)
        if turn.response is None:
            turn.on_gone = inference.cancel

    def _answer(self, turn: Turn, request: InferRequest, inferred: Inferred) -> Response:
        outputs = self._service.delivered(turn.request.tenant, request, inferred)
        return answer(request, inferred, outputs)

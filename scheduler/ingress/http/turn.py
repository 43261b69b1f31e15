"""One request's turn on its connection: answers go out in the order of the requests."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.ingress.held import Held
from scheduler.ingress.http.messages import Request, Response


class Turn:
    """One request's place in the order of answers.

    Args:
        flush: Writes the answers that are ready, in order.
        request: The request.
        held: Counts the request's body, and the other memory that it takes.

    Attributes:
        request: The request.
        response: The answer; None until it is ready.
        on_gone: Called if the client goes away before the answer.
    """

    __slots__ = ("_beside", "_flush", "_held", "on_gone", "request", "response")

    def __init__(self, flush: Callable[[], None], request: Request, held: Held) -> None:
        """Not yet answered."""
        self._flush = flush
        self._held = held
        self._beside = 0
        self.request = request
        self.response: Response | None = None
        self.on_gone: Callable[[], None] | None = None

    def take_body(self, body: memoryview) -> None:
        """Replaces the received body by its decompressed form, and counts that instead.

        Raises:
            Overloaded: There are too many bytes, in all or of this tenant.
        """
        request = self.request
        self._held.hold(request.tenant, len(body) - len(request.body))
        request.body = body

    def hold_beside(self, count: int) -> None:
        """Counts bytes that the request takes in memory beside its body.

        Raises:
            Overloaded: There are too many bytes, in all or of this tenant.
        """
        self._held.hold(self.request.tenant, count)
        self._beside += count

    def release(self) -> None:
        """Counts all its bytes out, once it is answered or nobody waits for it."""
        self._held.release(self.request.tenant, len(self.request.body) + self._beside)

    def answer(self, response: Response) -> None:
        """Sends the answer, after those before it."""
        self.on_gone = None
        self.response = response
        self._flush()

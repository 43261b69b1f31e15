"""The requests of one native connection, from when they are taken until they have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from scheduler.daemon.submission import Submission

if TYPE_CHECKING:
    from scheduler.ingress.native import Intake


class _Phase(Enum):
    """Where a request is that came in the current read, at whose end all are submitted."""

    TAKEN = auto()
    """It will be submitted."""
    UNWANTED = auto()
    """It will be submitted, and cancelled at once."""


@dataclass(eq=False, slots=True)
class Restoring:
    """A request whose inputs are being restored, and when it was taken."""

    taken_ns: int


class InFlight:
    """Requests by the ids that the client gave them; each is being restored, taken, or submitted.

    Args:
        intake: What they are submitted to.
    """

    def __init__(self, intake: Intake) -> None:
        """Starts with no requests."""
        self._intake = intake
        # The number of a submitted request is the intake's id for it.
        self._requests: dict[int, Restoring | _Phase | int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, client_id: int) -> bool:
        return client_id in self._requests

    def restore(self, client_id: int, taken_ns: int) -> Restoring:
        """Adds a request whose inputs are being restored."""
        restoring = self._requests[client_id] = Restoring(taken_ns)
        return restoring

    def restored(self, client_id: int, restoring: Restoring) -> bool:
        """Removes a request that can now be taken; returns False if it was cancelled meanwhile."""
        if self._requests.get(client_id) is not restoring:
            return False
        del self._requests[client_id]
        return True

    def take(self, client_id: int) -> None:
        """Adds a request that is submitted next."""
        self._requests[client_id] = _Phase.TAKEN

    def submit(self, taken: Sequence[tuple[int, Submission]]) -> None:
        """Submits the requests that were taken, each with its client's id."""
        request_ids = self._intake.submit([submission for _, submission in taken])
        unwanted: list[int] = []
        for (client_id, _), request_id in zip(taken, request_ids, strict=True):
            phase = self._requests.get(client_id)
            if phase is not None:  # else it has ended already
                self._requests[client_id] = request_id
            if phase is _Phase.UNWANTED:
                unwanted.append(request_id)
        for request_id in unwanted:
            self._intake.cancel(request_id)

    def cancel(self, client_id: int) -> Restoring | None:
        """Cancels a request, unless it has ended.

        Returns:
            The request if its inputs were being restored. It is no longer in flight, and nothing
            else answers it.
        """
        match self._requests.get(client_id):
            case int(request_id):
                self._intake.cancel(request_id)
            case _Phase.TAKEN:
                self._requests[client_id] = _Phase.UNWANTED
            case Restoring() as restoring:
                del self._requests[client_id]
                return restoring
        return None

    def end(self, client_id: int) -> None:
        """Removes a request that was answered."""
        self._requests.pop(client_id, None)

    def submitted(self) -> deque[int]:
        """The intake's ids of the requests that it has."""
        return deque(each for each in self._requests.values() if isinstance(each, int))

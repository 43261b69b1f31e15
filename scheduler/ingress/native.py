"""The native door: the box's own protocol over unix sockets and TCP."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.neighbours import Neighbours
from scheduler.daemon.submission import Submission
from scheduler.errors import InvalidInput, Overloaded
from scheduler.ingress.admission import Admission
from scheduler.ingress.held import Held
from scheduler.ingress.model_shelf import ModelShelf
from scheduler.ingress.native_connection import NativeConnection
from scheduler.ingress.restoring import Restorer
from scheduler.ingress.seats import Seats
from scheduler.ingress.task_door import TaskDoor
from scheduler.ingress.turns import Share
from scheduler.policy_loading import load_offered
from scheduler.tenants import UNCOUNTED, Access, Tenant
from scheduler.wire import FrameLimits

_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class DoorRules:
    """What the door asks of those who come in.

    Attributes:
        site: The name that clients are told.
        access: Who may come in.
        frames: The largest header and body.
        connections: How many may be open.
        max_budget_ns: The longest deadline.
    """

    site: str
    access: Access
    frames: FrameLimits
    connections: int
    max_budget_ns: int


class Intake(Protocol):
    """What takes requests in: the driver, or the result cache in front of it."""

    def submit(self, submissions: list[Submission]) -> list[int]:
        """Takes requests in, in this order; their ids. Each is answered exactly once."""

    def cancel(self, request_id: int) -> None:
        """Ends a request as cancelled, if it has not ended."""


class NativeDoor:
    """Everything that the connections of the native protocol share.

    Args:
        driver: What the box has and is doing; takes the requests, too.
        rules: What is asked of clients.
        status: What `status` answers.
        intake: Takes the requests in the driver's place.

    Attributes:
        driver: What the box has and is doing.
        intake: Takes the requests.
        rules: What is asked of clients.
        status: What `status` answers.
        admission: Checks what requests bring.
        reading: Counts the bytes of bodies that are coming in.
        unsent: The connections that have something to say.
        tasks: Takes what concerns durable tasks; None where none are kept.
        neighbours: Takes what other boxes say; None where there are none.
        shelf: Gives model files to other boxes; None for not.
        restorer: Undoes what was done to inputs for a slow link.
    """

    def __init__(
        self,
        driver: Driver,
        rules: DoorRules,
        status: Callable[[], Any],
        intake: Intake | None = None,
    ) -> None:
        """Open, with nobody in."""
        self.driver = driver
        self.intake: Intake = driver if intake is None else intake
        self.rules = rules
        self.status = status
        self.reading = Held(driver.core.limits.bytes)
        self.unsent: list[NativeConnection] = []
        driver.after_event = self.flush
        self._connections: set[NativeConnection] = set()
        self._strangers: dict[NativeConnection, None] = {}
        self._shares: defaultdict[str, Share] = defaultdict(Share)
        self._seats: Seats[NativeConnection] = Seats(rules.connections)
        self.admission = Admission(driver, rules.max_budget_ns)
        self.tasks: TaskDoor | None = None
        self.neighbours: Neighbours | None = None
        self.shelf: ModelShelf | None = None
        self.restorer = Restorer(driver.catalog, rules.frames.body_bytes)
        self._closing = False

    def __call__(self) -> asyncio.BufferedProtocol:
        """The protocol of one more connection."""
        return NativeConnection(self)

    def for_doors(self) -> asyncio.BufferedProtocol:
        """The protocol of one more connection from a door that has asked who its callers are."""
        return NativeConnection(self, is_door=True)

    def enter(self, connection: NativeConnection) -> None:
        """Counts a connection in; one that has not said who it is makes room for it.

        Raises:
            Overloaded: There are too many.
        """
        if len(self._connections) >= self.rules.connections and not connection.is_door:
            full = Overloaded(f"{self.rules.connections} connections are open already")
            if not self._strangers:
                raise full
            longest = next(iter(self._strangers))
            longest.refuse(full)
            self.leave(longest)
        self._connections.add(connection)
        if not connection.is_door:
            self._strangers[connection] = None

    def welcome(self, connection: NativeConnection, tenant: Tenant) -> None:
        """Notes that a connection has said who it is.

        Raises:
            Overloaded: The tenant has as many as it may.
        """
        if not connection.is_door:
            self._seats.take(connection, tenant)
        self._strangers.pop(connection, None)

    def share_of(self, tenant: Tenant) -> Share | None:
        """What all connections of a tenant have together; None where each has its own."""
        return None if tenant.name in UNCOUNTED else self._shares[tenant.name]

    def leave(self, connection: NativeConnection) -> None:
        """Counts a connection out."""
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        self._seats.leave(connection)

    def take_access(self, access: Access) -> None:
        """Takes over who may come in, which holds for those who are in as well."""
        self.rules = replace(self.rules, access=access)
        for connection in list(self._connections):
            connection.look_again()

    def flush(self) -> None:
        """Sends what the connections have to say: all answers to one client at once."""
        unsent, self.unsent = self.unsent, []
        for connection in unsent:
            connection.flush()

    def swap_policy(self, name: Any, options: Any) -> dict[str, Any]:
        """Lets another policy decide until the configuration names one again; which one does.

        Raises:
            InvalidInput: There is no such policy or option.
        """
        options = {} if options is None else options
        if not isinstance(name, str) or not _is_options(options):
            raise InvalidInput("policy takes name, a string, and options, a map")
        try:
            policy = load_offered(name, **options)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(str(error)) from None
        self.driver.take_policy(policy, name, options)
        return {"name": name, **options}

    def stop_admitting(self) -> None:
        """Tells every client to take new requests elsewhere; answers still go out."""
        self._closing = True
        for connection in self._connections:
            connection.say_goodbye()
        self.flush()

    @property
    def closing(self) -> bool:
        """Whether new requests are turned away."""
        return self._closing

    def close(self) -> None:
        """Closes every connection once what was written is out."""
        self.restorer.close()
        for connection in list(self._connections):
            connection.close()

    async def wait_closed(self, seconds: float) -> None:
        """Waits until all that was written is out, after `close`, for so long at most."""
        end_s = time.monotonic() + seconds
        while self._connections and time.monotonic() < end_s:
            await asyncio.sleep(_LOOK_S)


def _is_options(options: Any) -> bool:
    return isinstance(options, dict) and all(isinstance(key, str) for key in options)

"""The native door: laxity's own protocol over unix sockets and TCP."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from scheduler.daemon.asyncio_tasks import wait_until
from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.neighbours import Neighbours
from scheduler.daemon.submission import Submission
from scheduler.errors import SHUTTING_DOWN, InvalidInput, Overloaded, Unavailable
from scheduler.ingress.admission import Admission
from scheduler.ingress.certificates import DoorContext
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


@dataclass(frozen=True, slots=True)
class DoorRules:
    """The rules for clients of the door.

    Attributes:
        site: The site's name, which clients are told.
        access: Tokens, certificates and tenants.
        frames: The largest header and body.
        connections: How many connections may be open.
        max_budget_ns: The longest budget of a request.
    """

    site: str
    access: Access
    frames: FrameLimits
    connections: int
    max_budget_ns: int


class Intake(Protocol):
    """What requests are submitted to: the driver, or the result cache in front of it."""

    def submit(self, submissions: list[Submission]) -> list[int]:
        """Submits requests in this order; returns their ids. Each is answered exactly once."""

    def cancel(self, request_id: int) -> None:
        """Cancels a request, if it has not ended."""


class NativeDoor:
    """What all connections of the native protocol share.

    Args:
        driver: The scheduler's driver.
        rules: The rules for clients.
        status: Gives the answer to `status`.
        intake: Takes the requests in place of the driver.

    Attributes:
        driver: The scheduler's driver.
        intake: Takes the requests.
        rules: The rules for clients.
        status: Gives the answer to `status`.
        admission: Checks requests.
        reading: Counts the bytes of bodies being received.
        unsent: The connections with unsent messages.
        tasks: Answers messages about durable tasks; None if the box keeps none.
        neighbours: Answers messages from other boxes; None if the box has no neighbours.
        shelf: Serves model files to other boxes; None if the box does not.
        restorer: Decodes inputs that were encoded for a slow link.
        tls: The certificates of its `tls` addresses; None if it has none.
        closing: Whether new requests are refused.
    """

    def __init__(
        self,
        driver: Driver,
        rules: DoorRules,
        status: Callable[[], Any],
        intake: Intake | None = None,
    ) -> None:
        """Open, with no connections."""
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
        self.tls: DoorContext | None = None
        self.restorer = Restorer(driver.catalog, rules.frames.body_bytes)
        self.closing = False

    def __call__(self) -> asyncio.BufferedProtocol:
        """The protocol of a new connection."""
        return NativeConnection(self)

    def for_doors(self) -> asyncio.BufferedProtocol:
        """The protocol of a new connection from a door, which authenticates its own callers."""
        return NativeConnection(self, is_door=True)

    def enter(self, connection: NativeConnection) -> None:
        """Registers a connection; at the limit, the oldest one without a hello is closed for it.

        Raises:
            Overloaded: There are too many connections.
        """
        if len(self._connections) >= self.rules.connections and not connection.caller.is_door:
            most = self.rules.connections
            full = Overloaded(f"{most} connections are open already (limits.connections)")
            if not self._strangers:
                raise full
            longest = next(iter(self._strangers))
            longest.refuse(full)
            self.leave(longest)
        self._connections.add(connection)
        if not connection.caller.is_door:
            self._strangers[connection] = None

    def welcome(self, connection: NativeConnection) -> None:
        """Counts a connection for its tenant after its hello.

        Raises:
            Overloaded: The tenant already has as many connections as it may.
        """
        if not connection.caller.is_door:
            self._seats.take(connection, connection.caller.tenant)
        self._strangers.pop(connection, None)

    def share_of(self, tenant: Tenant) -> Share | None:
        """The share of all connections of a tenant; None if each connection has its own."""
        return None if tenant.name in UNCOUNTED else self._shares[tenant.name]

    def leave(self, connection: NativeConnection) -> None:
        """Removes a connection."""
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        self._seats.leave(connection)

    def take_access(self, access: Access) -> None:
        """Applies new access rules and authorities, also to open connections."""
        self.rules = replace(self.rules, access=access)
        for connection in list(self._connections):
            connection.look_again()

    def flush(self) -> None:
        """Sends the unsent messages, all of one connection's in one call."""
        unsent, self.unsent = self.unsent, []
        for connection in unsent:
            connection.flush()

    def swap_policy(self, name: Any, options: Any) -> dict[str, Any]:
        """Swaps the policy until the configuration names one again; returns its name and options.

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

    def check_open(self) -> None:
        """Checks that new requests are admitted.

        Raises:
            Unavailable: They are not any more.
        """
        if self.closing:
            raise Unavailable(SHUTTING_DOWN)

    def stop_admitting(self) -> None:
        """Refuses new requests and tells every client so; answers still go out."""
        self.closing = True
        for connection in self._connections:
            connection.say_goodbye()
        self.flush()

    async def wait_copied(self, seconds: float) -> None:
        """Waits, after `stop_admitting`, until clients have copied all results, at most so long."""
        await wait_until(lambda: not any(one.shown_bytes for one in self._connections), seconds)

    def close(self) -> None:
        """Closes every connection once its written data is sent."""
        self.restorer.close()
        for connection in list(self._connections):
            connection.close()

    async def wait_closed(self, seconds: float) -> None:
        """Waits, after `close`, until all connections are closed, but at most so many seconds."""
        await wait_until(lambda: not self._connections, seconds)


def _is_options(options: Any) -> bool:
    return isinstance(options, dict) and all(isinstance(key, str) for key in options)

"""This box among the others of its site: finds them, tells them how it is, uses them as targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from scheduler import wire
from scheduler.address import Address
from scheduler.backoff import Backoff
from scheduler.client.connection import Connection
from scheduler.daemon.driver import Driver
from scheduler.daemon.ending import end_tasks
from scheduler.daemon.neighbours.guests import Guest, Guests
from scheduler.daemon.neighbours.members import SUSPECT_NS, Identity, Members
from scheduler.daemon.neighbours.peer_link import (
    CONNECT_S,
    FIRST_RETRY_NS,
    LONGEST_RETRY_NS,
    PeerLink,
)
from scheduler.daemon.neighbours.seek import ask
from scheduler.errors import Forbidden, InvalidInput, LaxityError, ProtocolError
from workers.link import ModelCard

REPORT_S = 0.2
"""How often others are told, give or take a tenth by chance."""

MESSAGES = frozenset(("peer", "leave", "ping"))
"""What other boxes say at the native door."""

_NEWS = {
    "up": "another box is heard",
    "suspected": "another box is silent; it is sent nothing",
    "gone": "another box is gone; it is called again and again",
    "left": "another box was stopped",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What a box is told of its site.

    Attributes:
        site: The site's name, the same for all its boxes.
        box: The box's own name.
        join: Where to ask for members; its own address may be among them.
        advertise: Where others reach this box; None: at the address that they see, and `port`.
        port: Where its native door listens; None where no other machine reaches it.
        token: What it shows to others; None for nothing.
    """

    site: str
    box: str
    join: tuple[Address, ...] = ()
    advertise: Address | None = None
    port: int | None = None
    token: str | None = None


class Neighbours:
    """Keeps the members of a site, a link to each, and tells each how this box is.

    Args:
        driver: Whose targets the others become.
        options: What the box is told of its site.
        is_loaded: Whether its door takes requests for a model.
    """

    def __init__(
        self,
        driver: Driver,
        options: SiteOptions,
        is_loaded: Callable[[str], bool] = lambda _model: True,
    ) -> None:
        """Asks nobody before `start`."""
        self._driver = driver
        self._options = options
        # Another one in each life of the scheduler, also on a box whose clock starts at 1970.
        self._incarnation = random.SystemRandom().getrandbits(62)
        self._members = Members(options.box, self._incarnation)
        self._links: dict[str, PeerLink] = {}
        self._guests = Guests(driver, self._members, is_loaded)
        self._tasks: list[asyncio.Task[None]] = []
        self._alone = False
        self._states: dict[str, str] = {}

    def start(self) -> None:
        """Looks for the others from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat())]
        self._tasks += [loop.create_task(self._seek(address)) for address in self._options.join]

    def leave(self) -> None:
        """Tells the others that this box goes."""
        for link in self._links.values():
            link.leave()

    async def close(self) -> None:
        """Looks for nobody any more; the links are the driver's to close."""
        await end_tasks(self._tasks)

    # -- what others say at the door

    def take(self, header: wire.Header, guest: Guest) -> Any:
        """Answers a message of another box.

        Raises:
            InvalidInput: It is none.
            Forbidden: That box can't be one of this site.
        """
        if header["t"] == "ping":
            return None
        if header["t"] == "leave":
            if (box := self._guests.box_of(guest)) is not None:
                self._members.left(box)
            return None
        return self._welcome(header, guest)

    def check_room(self) -> None:
        """Nothing, while there is room for one more request of another box beside what is here.

        Raises:
            Overloaded: There is none.
        """
        self._guests.check_room()

    def gone(self, guest: Guest) -> None:
        """The connection of a guest is closed."""
        self._guests.gone(guest)

    def _welcome(self, header: wire.Header, guest: Guest) -> Any:
        match header:
            case {
                "site": str(site),
                "box": str(box),
                "incarnation": int(incarnation),
                "address": str() | None as address,
                "members": list(members),
            }:
                pass
            case _:
                raise InvalidInput("a peer says its site, box, incarnation, address and members")
        if site != self._options.site:
            raise Forbidden(f"this box belongs to the site {self._options.site!r}, not {site!r}")
        if (box, incarnation) != (self._options.box, self._incarnation):
            now_ns = self._driver.clock_ns()
            try:
                if address is not None:
                    self._members.introduced(Identity(box, address, incarnation), now_ns)
                self._members.told(members, now_ns)
            except ValueError as error:
                raise InvalidInput(str(error)) from None
            self._adopt()
            self._guests.welcome(guest, box)
        return {**self._who_is_here(guest.local_host), "models": self._guests.cards()}

    # -- what links need to know (Introducer)

    def address_of(self, box: str) -> str | None:
        """Where a member is reached by now; None while it has left."""
        member = self._members.get(box)
        return None if member is None or member.left else member.who.address

    def introduction(self, connection: Connection) -> wire.Header:
        """The message in which this box says who it is."""
        who = self._who_is_here(connection.local_host)
        return {"t": "peer", "id": 0, "site": self._options.site, **who}

    def _who_is_here(self, seen_host: str | None) -> dict[str, Any]:
        """What boxes say of themselves to each other, whoever asked whom."""
        return {
            "box": self._options.box,
            "incarnation": self._incarnation,
            "address": self._own_address(seen_host),
            "members": self._members.gossip(self._driver.clock_ns()),
        }

    def _own_address(self, seen_host: str | None) -> str | None:
        options = self._options
        if options.advertise is not None:
            return str(options.advertise)
        if options.port is None or seen_host is None:
            return None
        return str(Address("tcp", host=seen_host, port=options.port))

    def met(self, box: str, value: Any) -> None:
        """A member has answered an introduction.

        Raises:
            ProtocolError: The answer is none, or of another box.
        """
        found = self._answered(value, None)
        if found != box:
            raise ProtocolError(f"at the address of {box!r} is {found!r}")

    def heard(self, box: str, members: Sequence[Any]) -> None:
        """A member has sent a report, with whom it knows now and then."""
        now_ns = self._driver.clock_ns()
        self._members.heard(box, now_ns)
        if members:
            self._members.told(members, now_ns)
            self._adopt()

    def has_same(self, card: ModelCard) -> bool:
        """Whether a model of that name is the same one here, or none is here."""
        own = self._driver.catalog.cards.get(card.name)
        if own is None or own is card:
            return True
        return (own.digest, own.signature) == (card.digest, card.signature)

    def card(self, model: str) -> ModelCard | None:
        """What is known here of a model, by this box's own files where it has them."""
        return self._driver.catalog.cards.get(model)

    def _answered(self, value: Any, asked: Address | None) -> str:
        """Takes in who answered, and whom it knows; the name of that box."""
        match value:
            case {
                "box": str(box),
                "incarnation": int(incarnation),
                "address": str() | None as address,
                "members": list(members),
            }:
                pass
            case _:
                raise ProtocolError(f"no answer of a box: {value!r:.100}")
        if box == self._options.box:
            if incarnation != self._incarnation:
                raise ProtocolError(f"another box is called {box!r} as well")
            return box
        now_ns = self._driver.clock_ns()
        where = str(asked) if asked is not None else address or self.address_of(box)
        if where is not None:
            self._members.introduced(Identity(box, where, incarnation), now_ns)
        self._members.told(members, now_ns)
        self._adopt()
        return box

    # -- finding others

    async def _seek(self, address: Address) -> None:
        """Asks at an address again and again, as long as the box there is not heard."""
        backoff = Backoff(FIRST_RETRY_NS, LONGEST_RETRY_NS)
        found: str | None = None
        while found != self._options.box:
            member = self._members.get(found) if found is not None else None
            if member is None or member.state(self._driver.clock_ns()) != "up":
                try:
                    asking = ask(address, self._options.token, self.introduction)
                    found = self._answered(await asyncio.wait_for(asking, CONNECT_S), address)
                    backoff.reset()
                except (LaxityError, OSError, asyncio.TimeoutError, ValueError) as error:
                    log.debug("not joined", address=str(address), error=str(error))
            await asyncio.sleep(backoff.next_ns() / 1e9)

    def _adopt(self) -> None:
        """Gives each member a link."""
        for member in self._members:
            box = member.who.box
            if box not in self._links and not member.left:
                if self._driver.has_target(box):
                    log.error("a box is called like a target of this one", box=box)
                    continue
                link = PeerLink(box, self._options.token, self, self._driver, self._driver.clock_ns)
                self._links[box] = link
                self._driver.add_target(box, link)

    # -- telling others

    async def _beat(self) -> None:
        while True:
            before_ns = self._driver.clock_ns()
            await asyncio.sleep(REPORT_S * random.uniform(0.9, 1.1))
            now_ns = self._driver.clock_ns()
            self._guests.publish(now_ns)
            # Where this loop itself was held up, the others' reports still wait to be read.
            if now_ns - before_ns < SUSPECT_NS // 2:
                for link in self._links.values():
                    link.check(now_ns)
            await self._tidy(now_ns)

    async def _tidy(self, now_ns: int) -> None:
        """Lets go of those that are forgotten, and says who came, went or is missing."""
        self._members.forget(now_ns)
        for box in [box for box in self._links if self._members.get(box) is None]:
            del self._links[box]
            await self._driver.remove_target(box, f"nobody has heard of box {box} for long")
        states = {member.who.box: member.state(now_ns) for member in self._members}
        for box, state in states.items():
            if self._states.get(box) != state:
                (log.warning if state == "gone" else log.info)(_NEWS[state], box=box, state=state)
        self._states = {**states}
        alone = self._is_alone(now_ns)
        if alone != self._alone:
            self._alone = alone
            word = (
                "no other box is heard; going on alone" if alone else "other boxes are heard again"
            )
            (log.warning if alone else log.info)(word, members=len(self._members))

    def _is_alone(self, now_ns: int) -> bool:
        expected = len(self._members) or self._options.join
        return bool(expected) and self._members.is_alone(now_ns)

    # -- looking in

    def describe(self) -> dict[str, Any]:
        """This box and the others, for people and programs."""
        now_ns = self._driver.clock_ns()
        return {
            "box": self._options.box,
            "alone": self._is_alone(now_ns),
            "members": self._members.describe(now_ns),
        }

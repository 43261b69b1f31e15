"""This box's part in its site: it finds other boxes, reports to them, uses them as targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from scheduler import wire
from scheduler.address import Address
from scheduler.backoff import Backoff
from scheduler.client.asking import FIRST_ID, ask
from scheduler.client.connection import Connection
from scheduler.daemon.asyncio_tasks import end_tasks, start_task
from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.guests import Guest, Guests
from scheduler.daemon.neighbours.members import GONE_NS, SUSPECT_NS, Identity, Members
from scheduler.daemon.neighbours.peer_link import (
    CONNECT_S,
    FIRST_RETRY_NS,
    LONGEST_RETRY_NS,
    PeerLink,
)
from scheduler.daemon.neighbours.refusals import is_refusal, said
from scheduler.errors import Forbidden, InvalidInput, LaxityError, ProtocolError
from workers.link import ModelCard

REPORT_S = 0.2
"""Interval between reports, plus or minus a random tenth."""

MESSAGES = frozenset(("peer", "leave", "ping"))
"""Messages of other boxes at the native door."""

_NEWS = {
    "up": "another box is reachable",
    "suspected": "another box is silent; it is sent nothing",
    "gone": "another box is gone; this one keeps calling it",
    "left": "another box was stopped",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """The configuration of a box's site.

    Attributes:
        site: The site's name, the same for all its boxes.
        box: The box's own name.
        join: Addresses to ask for members; its own may be among them.
        advertise: Address at which others reach this box; None means the address that they see,
            with scheme and port of `door`.
        door: Its native door; None if other machines can't reach it.
        token: The token for other boxes; None for no token.
        version: The version of laxity that runs here.
    """

    site: str
    box: str
    join: tuple[Address, ...] = ()
    advertise: Address | None = None
    door: Address | None = None
    token: str | None = None
    version: str = ""


class Neighbours:
    """Keeps the members of a site and a link to each, and reports to each.

    Args:
        driver: The driver that gets the other boxes as targets.
        options: The configuration of the site.
        is_loaded: Whether this box's door takes requests for a model.

    Attributes:
        token: The token for other boxes; another one counts for connections that are made later.
    """

    def __init__(
        self,
        driver: Driver,
        options: SiteOptions,
        is_loaded: Callable[[str], bool] = lambda _model: True,
    ) -> None:
        """Contacts nobody before `start`."""
        self._driver = driver
        self._options = options
        self.token = options.token
        # Random, so that each run differs even on a box whose clock starts at 1970.
        self._incarnation = random.SystemRandom().getrandbits(62)
        self._members = Members(options.box)
        self._links: dict[str, PeerLink] = {}
        self._guests = Guests(driver, self._members, is_loaded)
        self._tasks: list[asyncio.Task[None]] = []
        self._alone = False
        self._namesakes: set[str] = set()
        self._not_joined: dict[Address, str] = {}
        self._introduced_at: str | None = None
        self._silent_ns: dict[str, int] = {}
        self._not_reached_by: list[str] = []
        self._states: dict[str, str] = {}

    def start(self) -> None:
        """Starts to report and to look for other boxes."""
        self._tasks = [start_task(self._beat(), "reports to other boxes")]
        self._tasks += [
            start_task(self._seek(address), f"the search for a box at {address}")
            for address in self._options.join
        ]

    def leave(self) -> None:
        """Tells the other boxes that this one is leaving."""
        for link in self._links.values():
            link.leave()

    async def close(self) -> None:
        """Stops reporting and looking; the driver closes the links."""
        await end_tasks(self._tasks)

    # -- messages at the door

    def take(self, header: wire.Header, guest: Guest) -> Any:
        """Answers a message of another box.

        Raises:
            InvalidInput: The message is malformed.
            Forbidden: That box can't join this site.
        """
        if header["t"] == "ping":
            return None
        if header["t"] == "leave":
            if (box := self._guests.box_of(guest)) is not None:
                self._members.left(box)
            return None
        return self._welcome(header, guest)

    def check_room(self) -> None:
        """Checks that there is room for one more request from another box.

        Raises:
            Overloaded: There is no room.
        """
        self._guests.check_room()

    def gone(self, guest: Guest) -> None:
        """Removes a guest whose connection has closed."""
        self._guests.gone(guest)

    def meet_again(self, guest: Guest) -> None:
        """Reconnects to a guest's box: its certificate was signed by who may not count any more."""
        box = self._guests.box_of(guest)
        if box is not None and (link := self._links.get(box)) is not None:
            link.hang_up(f"the certificate of {box} has to be checked again")

    def _welcome(self, header: wire.Header, guest: Guest) -> Any:
        said, site = _said(header), header.get("site")
        if said is None or not isinstance(site, str):
            raise InvalidInput("a peer message needs site, box, incarnation, address and members")
        box, incarnation, address, members = said
        if site != self._options.site:
            raise Forbidden(
                f"the box here belongs to the site {self._options.site!r}, not {site!r}"
            )
        if (box, incarnation) != (self._options.box, self._incarnation):
            try:
                who = Identity(box, address, incarnation) if address is not None else None
                self._introduced(who, header.get("version"), members)
            except ValueError as error:
                raise InvalidInput(str(error)) from None
            self._guests.welcome(guest, box)
        return {**self._who_is_here(guest.local_host), "models": self._guests.cards()}

    # -- for the links

    def address_of(self, box: str) -> str | None:
        """The current address of a member; None if it is unknown or has left."""
        member = self._members.get(box)
        return None if member is None or member.left else member.who.address

    def introduction(self, connection: Connection) -> wire.Header:
        """The message in which this box introduces itself."""
        who = self._who_is_here(connection.local_host)
        self._introduced_at = who["address"]
        return {"t": "peer", "id": FIRST_ID, "site": self._options.site, **who}

    def _who_is_here(self, seen_host: str | None) -> dict[str, Any]:
        """What this box says about itself, in introductions and in answers to them."""
        return {
            "box": self._options.box,
            "incarnation": self._incarnation,
            "address": self._own_address(seen_host),
            "version": self._options.version,
            "members": self._members.gossip(self._driver.clock_ns()),
        }

    def _own_address(self, seen_host: str | None) -> str | None:
        options = self._options
        if options.advertise is not None:
            return str(options.advertise)
        if options.door is None or seen_host is None:
            return None
        return str(replace(options.door, host=seen_host))

    def met(self, box: str, value: Any) -> None:
        """A member has answered an introduction.

        Raises:
            ProtocolError: The answer is malformed, or from another box.
        """
        found = self._answered(value, None)
        if found != box:
            raise ProtocolError(f"the box at the address of {box!r} is {found!r}")

    def heard(self, box: str, members: Sequence[Any]) -> None:
        """A member has sent a report, sometimes with gossip about members."""
        now_ns = self._driver.clock_ns()
        self._members.heard(box, now_ns)
        if members:
            self._members.told(members, now_ns)
            self._adopt()

    def allows(self, box: str, card: ModelCard) -> bool:
        """Whether a member's model may go by its name here; see `Catalog.allows`."""
        return self._driver.catalog.allows(box, card, self._is_up)

    def _is_up(self, box: str) -> bool:
        member = self._members.get(box)
        return member is not None and member.state(self._driver.clock_ns()) == "up"

    def card(self, model: str) -> ModelCard | None:
        """The card of a model, from this box's own files if it has them."""
        return self._driver.catalog.cards.get(model)

    def _answered(self, value: Any, asked: Address | None) -> str:
        """Records the box that answered and the members it knows; returns its name."""
        said = _said(value)
        if said is None:
            raise ProtocolError(f"not an answer of a box: {value!r:.100}")
        box, incarnation, address, members = said
        if box == self._options.box:
            if incarnation != self._incarnation:
                raise ProtocolError(f"two boxes are called {box!r}; give one of them another name")
            return box
        where = str(asked) if asked is not None else address or self.address_of(box)
        who = Identity(box, where, incarnation) if where is not None else None
        self._introduced(who, value.get("version"), members)
        return box

    def _introduced(self, who: Identity | None, version: object, members: Sequence[Any]) -> None:
        """Records what another box says about itself and about others.

        Args:
            who: What it says about itself; None if it can't be reached.
            version: The version of laxity that it runs, if it says so.
            members: The others, as gossip.

        Raises:
            ValueError: That is malformed.
            Forbidden: Its name is taken, or there are too many boxes.
        """
        now_ns = self._driver.clock_ns()
        if who is not None:
            self._members.introduced(who, now_ns, version)
        self._members.told(members, now_ns)
        self._adopt()

    # -- finding others

    async def _seek(self, address: Address) -> None:
        """Introduces this box at an address, repeatedly while the box there is not up."""
        backoff = Backoff(FIRST_RETRY_NS, LONGEST_RETRY_NS)
        found: str | None = None
        while found != self._options.box:
            member = self._members.get(found) if found is not None else None
            if member is None or member.state(self._driver.clock_ns()) != "up":
                try:
                    asking = ask(address, self.token, self.introduction)
                    value, _ = await asyncio.wait_for(asking, CONNECT_S)
                    found = self._answered(value, address)
                    backoff.reset()
                    self._not_joined.pop(address, None)
                except (LaxityError, OSError, asyncio.TimeoutError, ValueError) as error:
                    self._note_not_joined(address, error)
            else:
                self._not_joined.pop(address, None)
            await asyncio.sleep(backoff.next_ns() / 1e9)

    def _note_not_joined(self, address: Address, error: Exception) -> None:
        """Logs a persistent refusal once; that nothing answers is no news, as boxes may be off."""
        why = said(error)
        if is_refusal(error) and self._not_joined.get(address) != why:
            log.warning("another box can't be joined", address=str(address), reason=why)
        self._not_joined[address] = why

    def _adopt(self) -> None:
        """Gives each member a link."""
        for member in self._members:
            box = member.who.box
            if box not in self._links and not member.left:
                if self._driver.has_target(box):
                    if box not in self._namesakes:
                        self._namesakes.add(box)
                        log.error("not used: a box with the name of a target of this one", box=box)
                    continue
                link = PeerLink(box, self, self._driver, self._driver.clock_ns)
                self._links[box] = link
                self._driver.add_target(box, link)

    # -- reports to others

    async def _beat(self) -> None:
        while True:
            before_ns = self._driver.clock_ns()
            await asyncio.sleep(REPORT_S * random.uniform(0.9, 1.1))
            now_ns = self._driver.clock_ns()
            self._guests.publish(now_ns)
            # If this loop itself was held up, reports may have arrived but not been read yet.
            if now_ns - before_ns < SUSPECT_NS // 2:
                for link in self._links.values():
                    link.check(now_ns)
            await self._tidy(now_ns)

    async def _tidy(self, now_ns: int) -> None:
        """Removes forgotten members, and logs changes of members' states."""
        self._members.forget(now_ns)
        for box in [box for box in self._links if self._members.get(box) is None]:
            del self._links[box]
            await self._driver.remove_target(
                box, f"nobody has heard from box {box} for a long time"
            )
        states = {member.who.box: member.state(now_ns) for member in self._members}
        for box, state in states.items():
            if self._states.get(box) != state:
                (log.warning if state == "gone" else log.info)(_NEWS[state], box=box, state=state)
        self._states = {**states}
        self._note_silent({box for box, state in states.items() if state == "up"}, now_ns)
        alone = self._is_alone(now_ns)
        if alone != self._alone:
            self._alone = alone
            word = (
                "no other box is reachable; going on alone"
                if alone
                else "other boxes are reachable again"
            )
            (log.warning if alone else log.info)(word, members=len(self._members))

    def _note_silent(self, up: set[str], now_ns: int) -> None:
        """Notes which boxes don't call this one although it reaches them."""
        silent = up - self._guests.boxes()
        self._silent_ns = {box: self._silent_ns.get(box, now_ns) for box in silent}
        since, before = self._silent_ns.items(), self._not_reached_by
        self._not_reached_by = sorted(box for box, at_ns in since if now_ns - at_ns > GONE_NS)
        for box in self._not_reached_by:
            if box not in before:
                told = "another box does not reach this one"
                log.warning(told, box=box, address=self._introduced_at)

    def _is_alone(self, now_ns: int) -> bool:
        expected = len(self._members) or self._options.join
        return bool(expected) and self._members.is_alone(now_ns)

    # -- inspection

    def describe(self) -> dict[str, Any]:
        """This box and the others, for people and programs."""
        now_ns = self._driver.clock_ns()
        return {
            "box": self._options.box,
            "alone": self._is_alone(now_ns),
            "not_joined": [
                {"address": str(address), "reason": why}
                for address, why in self._not_joined.items()
            ],
            "address": self._introduced_at,
            "not_reached_by": self._not_reached_by,
            "members": self._members.describe(now_ns),
        }


def _said(value: Any) -> tuple[str, int, str | None, list[Any]] | None:
    """What a box says about itself, as in `_who_is_here`; None if that is malformed."""
    match value:
        case {
            "box": str(box),
            "incarnation": int(incarnation),
            "address": str() | None as address,
            "members": list(members),
        }:
            return box, incarnation, address, members
    return None

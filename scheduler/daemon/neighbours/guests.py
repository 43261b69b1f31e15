"""The boxes connected to this one's door: the room each has here, and the reports it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from scheduler import wire
from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.members import Members
from scheduler.daemon.neighbours.report import report_header, rows_of
from scheduler.errors import Overloaded
from workers.link import ModelCard

GOSSIP_EVERY = 5
"""One report in this many includes gossip about members."""

SENDER_NS = 1_000_000_000
"""A box that sent a request within this time is expected to send more."""

RETRY_MS = 20
"""After how long a box that found no room may try again."""


class Guest(Protocol):
    """Another box's connection to this one's door."""

    @property
    def held(self) -> int:
        """How many of its requests are here."""

    @property
    def local_host(self) -> str | None:
        """The address at which it reached this box."""

    def tell(self, header: wire.Header) -> None:
        """Sends an unsolicited message."""


@dataclass(slots=True)
class _Visit:
    """The name of a guest's box, and when it last had requests here."""

    box: str
    sent_ns: int = 0


class Guests:
    """Reports to each guest the state of this box, and how much it may send.

    Args:
        driver: The driver of this box.
        members: The members known here.
        is_loaded: Whether this box's door takes requests for a model.
    """

    def __init__(self, driver: Driver, members: Members, is_loaded: Callable[[str], bool]) -> None:
        """Has no guests."""
        self._driver = driver
        self._members = members
        self._is_loaded = is_loaded
        self._visits: dict[Guest, _Visit] = {}
        self._waits: list[dict[tuple[str, str], int]] = []
        self._cards: list[ModelCard] = []
        self._room = 0
        self._beats = 0

    def welcome(self, guest: Guest, box: str) -> None:
        """Registers the connection of a box."""
        self._visits[guest] = _Visit(box)

    def gone(self, guest: Guest) -> None:
        """Removes a guest whose connection has closed."""
        self._visits.pop(guest, None)

    def box_of(self, guest: Guest) -> str | None:
        """The box behind a connection; None if it has not introduced itself."""
        visit = self._visits.get(guest)
        return None if visit is None else visit.box

    def boxes(self) -> set[str]:
        """The boxes that are connected to this one."""
        return {visit.box for visit in self._visits.values()}

    def check_room(self) -> None:
        """Checks that there is room for one more request from another box.

        Other boxes go by reports: several may see the same room, and must not each fill it.

        Raises:
            Overloaded: There is no room.
        """
        if len(self._driver.core.ledger.records) >= self._room:
            raise Overloaded(
                f"{self._room} requests are here already", {"retry_after_ms": RETRY_MS}
            )

    def cards(self) -> list[Any]:
        """The models that devices of this box serve, as in messages."""
        return [asdict(card) for card in self._own_cards()]

    def _own_cards(self) -> list[ModelCard]:
        cards = self._driver.catalog.cards
        return [cards[name] for name in self._driver.own_models()]

    def publish(self, now_ns: int) -> None:
        """Sends each guest a report."""
        if not self._visits:
            return
        rows = [row for row in rows_of(self._driver.core, now_ns) if self._is_loaded(row.model)]
        self._room = max([row.steps[-1][1] for row in rows], default=0)
        waits = {(row.model, row.variant): row.wait_ns for row in rows}
        # Report the least of the last three waits: a brief wait is over before anyone can react.
        lasting = {k: min([ns, *(w[k] for w in self._waits if k in w)]) for k, ns in waits.items()}
        self._waits = [*self._waits[-1:], waits]
        self._beats += 1
        gossip = self._members.gossip(now_ns) if self._beats % GOSSIP_EVERY == 0 else None
        cards = self._own_cards()
        changed, self._cards = cards != self._cards, cards
        catalog = {"t": "catalog", "models": self.cards()} if changed else None
        for guest, visit in self._visits.items():
            if guest.held:
                visit.sent_ns = now_ns
        for guest in list(self._visits):
            report = report_header(rows, lasting, self._share_of(guest, now_ns))
            if gossip is not None:
                report["members"] = gossip
            if catalog is not None:
                guest.tell(catalog)
            guest.tell(report)

    def _share_of(self, guest: Guest, now_ns: int) -> Callable[[int], int]:
        """How many requests a box may have here: the room others leave, or its share if larger."""
        held = len(self._driver.core.ledger.records)
        others = sum(other.held for other in self._visits)
        senders = {
            visit.box
            for other, visit in self._visits.items()
            if other is guest or (now_ns - visit.sent_ns < SENDER_NS and visit.sent_ns)
        }
        left, own = held - guest.held, held - others
        return lambda room: max(0, room - left, (room - own) // len(senders))

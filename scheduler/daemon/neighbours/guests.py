"""The boxes that are connected to this one's door: how much room each has, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from scheduler import wire
from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.members import Members
from scheduler.daemon.neighbours.report import report_header, rows_of
from scheduler.errors import Overloaded

GOSSIP_EVERY = 5
"""Every so many reports say whom this box knows."""

SENDER_NS = 1_000_000_000
"""Who sent something within this time counts as one who will again."""

RETRY_MS = 20
"""When a box may come again that found no room here."""


class Guest(Protocol):
    """Another box's connection to this one's door."""

    @property
    def held(self) -> int:
        """How many requests of it are here."""

    @property
    def local_host(self) -> str | None:
        """The address at which it found this box."""

    def tell(self, header: wire.Header) -> None:
        """Says something of its own accord."""


@dataclass(slots=True)
class _Visit:
    """A guest, and what is known of it."""

    box: str
    sent_ns: int = 0


class Guests:
    """Tells each guest how this box is, and how much it may send.

    Args:
        driver: This box.
        members: Whom it knows.
        is_loaded: Whether its door takes requests for a model.
    """

    def __init__(self, driver: Driver, members: Members, is_loaded: Callable[[str], bool]) -> None:
        """Has none."""
        self._driver = driver
        self._members = members
        self._is_loaded = is_loaded
        self._visits: dict[Guest, _Visit] = {}
        self._waits: list[dict[tuple[str, str], int]] = []
        self._cards: list[Any] = []
        self._room = 0
        self._beats = 0

    def welcome(self, guest: Guest, box: str) -> None:
        """It is the connection of that box."""
        self._visits[guest] = _Visit(box)

    def gone(self, guest: Guest) -> None:
        """Its connection is closed."""
        self._visits.pop(guest, None)

    def box_of(self, guest: Guest) -> str | None:
        """Whose connection it is; None where it has not said."""
        visit = self._visits.get(guest)
        return None if visit is None else visit.box

    def check_room(self) -> None:
        """Nothing, while there is room for one more request of another box beside what is here.

        They count by reports; several that found the same room must not fill it several times.

        Raises:
            Overloaded: There is none.
        """
        if len(self._driver.core.ledger.records) >= self._room:
            raise Overloaded(
                f"{self._room} requests are here already", {"retry_after_ms": RETRY_MS}
            )

    def cards(self) -> list[Any]:
        """The models that devices of this box serve."""
        cards = self._driver.catalog.cards
        return [asdict(cards[name]) for name in self._driver.own_models()]

    def publish(self, now_ns: int) -> None:
        """Tells all of them how this box is now."""
        if not self._visits:
            return
        rows = [row for row in rows_of(self._driver.core, now_ns) if self._is_loaded(row.model)]
        self._room = max([row.steps[-1][1] for row in rows], default=0)
        waits = {(row.model, row.variant): row.wait_ns for row in rows}
        # What waits only for a moment is over before anybody can act on it.
        lasting = {k: min([ns, *(w[k] for w in self._waits if k in w)]) for k, ns in waits.items()}
        self._waits = [*self._waits[-1:], waits]
        self._beats += 1
        gossip = self._members.gossip(now_ns) if self._beats % GOSSIP_EVERY == 0 else None
        cards = self.cards()
        changed, self._cards = cards != self._cards, cards
        for guest, visit in self._visits.items():
            if guest.held:
                visit.sent_ns = now_ns
        for guest in list(self._visits):
            report = report_header(rows, lasting, self._share_of(guest, now_ns))
            if gossip is not None:
                report["members"] = gossip
            if changed:
                guest.tell({"t": "catalog", "models": cards})
            guest.tell(report)

    def _share_of(self, guest: Guest, now_ns: int) -> Callable[[int], int]:
        """How many requests a box may have here: what others leave, and its part in any case."""
        held = len(self._driver.core.ledger.records)
        others = sum(other.held for other in self._visits)
        senders = {
            visit.box
            for other, visit in self._visits.items()
            if other is guest or (now_ns - visit.sent_ns < SENDER_NS and visit.sent_ns)
        }
        left, own = held - guest.held, held - others
        return lambda room: max(0, room - left, (room - own) // len(senders))

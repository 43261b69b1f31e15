"""Who belongs to the site, as one box knows it: told by the boxes themselves, and by hearsay.

Apart from sockets and clocks: time is an argument. A box believes what another says of itself, and
of third ones it takes over what somebody heard from them later than it did itself. Whether a box
can be reached is nobody's word but its own: a cable that is cut for one need not be for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scheduler.address import parse_address
from scheduler.errors import Forbidden

State = Literal["up", "suspected", "gone", "left"]

SUSPECT_NS = 700_000_000
"""A box that was not heard for so long is not sent anything: three reports did not come."""

GONE_NS = 10_000_000_000
"""After so long it is called gone; it is called upon all the same."""

FORGET_NS = 3_600_000_000_000
"""After so long without anybody having heard of it, it is no member any more."""

_ENTRY = (str, str, int, int, bool)
"""What gossip says of a member: name, address, incarnation, age in milliseconds, left."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

MOST_MEMBERS = 256
"""More than these are not taken in: every box keeps a connection to every other one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a box says of itself.

    Attributes:
        box: Its name, of its own within the site.
        address: Where its native door is reached, as a URL.
        incarnation: Of this life of its scheduler; another life has another number.

    Raises:
        ValueError: A box can't be called that or be reached there, or its life has no number.
    """

    box: str
    address: str
    incarnation: int

    def __post_init__(self) -> None:
        """Refuses what would be mistaken for a device of the box, or a socket of it."""
        if _NAME.fullmatch(self.box) is None:
            raise ValueError(f"{self.box!r:.80} is no name of a box")
        if parse_address(self.address).scheme == "unix":
            raise ValueError(f"{self.address!r:.80} is on that machine alone")
        if type(self.incarnation) is not int:  # True would be told on, and no box takes it there
            raise ValueError(f"{self.incarnation!r:.80} is no number of a life")


@dataclass(slots=True)
class Member:
    """Another box.

    Attributes:
        who: What it last said of itself, or others said of it.
        told_ns: When anybody last heard from it, as far as known here.
        heard_ns: When this box last heard from it; None if never.
        left: Whether it said that it goes.
    """

    who: Identity
    told_ns: int
    heard_ns: int | None = None
    left: bool = False

    def state(self, now_ns: int) -> State:
        """How it is, seen from here."""
        if self.left:
            return "left"
        if self.heard_ns is None:
            return "gone"
        silent_ns = now_ns - self.heard_ns
        return "up" if silent_ns < SUSPECT_NS else "suspected" if silent_ns < GONE_NS else "gone"


class Members:
    """The members of a site besides this box.

    Args:
        own: The name of this box.
        incarnation: Of this life of it.
    """

    def __init__(self, own: str, incarnation: int) -> None:
        """Knows nobody."""
        self._own = own
        self._incarnation = incarnation
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, box: str) -> Member | None:
        """The member of that name."""
        return self._members.get(box)

    def introduced(self, who: Identity, now_ns: int) -> None:
        """A box has said who it is.

        Raises:
            Forbidden: Its name is taken by another box, or there are too many.
        """
        if who.box == self._own:
            raise Forbidden(f"this box is called {who.box!r}; give the other one another name")
        known = self._members.get(who.box)
        if known is None:
            if len(self._members) >= MOST_MEMBERS:
                raise Forbidden(f"the site has {MOST_MEMBERS} other boxes already")
            self._members[who.box] = Member(who, now_ns, now_ns)
            return
        elsewhere = known.who.address != who.address
        if elsewhere and known.who.incarnation != who.incarnation and known.state(now_ns) == "up":
            raise Forbidden(
                f"another box is called {who.box!r}, at {known.who.address}; "
                "each has a name of its own"
            )
        known.who, known.left = who, False
        known.told_ns = known.heard_ns = now_ns

    def heard(self, box: str, now_ns: int) -> None:
        """A report of it came."""
        member = self._members.get(box)
        if member is not None:
            member.told_ns = member.heard_ns = now_ns

    def left(self, box: str) -> None:
        """It has said that it goes."""
        member = self._members.get(box)
        if member is not None:
            member.left = True

    def forget(self, now_ns: int) -> None:
        """Drops those that nobody has heard of for long."""
        for box, member in list(self._members.items()):
            if now_ns - member.told_ns > FORGET_NS:
                del self._members[box]

    # -- hearsay

    def gossip(self, now_ns: int) -> list[list[Any]]:
        """What others are told: name, address, incarnation, age in milliseconds, left."""
        return [
            [m.who.box, m.who.address, m.who.incarnation, (now_ns - m.told_ns) // 10**6, m.left]
            for m in self._members.values()
        ]

    def told(self, entries: Sequence[Any], now_ns: int) -> None:
        """Takes over what another box knows better.

        Raises:
            ValueError: The entries are not what `gossip` gives.
        """
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != len(_ENTRY):
                raise ValueError(f"no member: {entry!r:.100}")
            box, address, incarnation, age_ms, left = entry
            if any(type(v) is not kind for v, kind in zip(entry, _ENTRY, strict=True)):
                raise ValueError(f"no member: {entry!r:.100}")
            if box != self._own:
                self._told_of(
                    Identity(box, address, incarnation),
                    now_ns - max(0, age_ms) * 10**6,
                    left,
                    now_ns,
                )

    def _told_of(self, who: Identity, told_ns: int, left: bool, now_ns: int) -> None:
        known = self._members.get(who.box)
        if known is None:
            if now_ns - told_ns < FORGET_NS and len(self._members) < MOST_MEMBERS:
                self._members[who.box] = Member(who, told_ns, None, left)
        elif told_ns > known.told_ns:
            known.told_ns = told_ns
            if known.who.incarnation != who.incarnation:
                known.who, known.left = who, left
            elif left:
                known.left = True

    # -- looking in

    def is_alone(self, now_ns: int) -> bool:
        """Whether there are other boxes, or were, and none of them is heard."""
        return not any(m.state(now_ns) == "up" for m in self._members.values())

    def describe(self, now_ns: int) -> list[dict[str, Any]]:
        """All of them, for people and programs; heard_s is None for one that was never heard."""
        return [
            {
                "name": box,
                "address": member.who.address,
                "state": member.state(now_ns),
                "heard_s": None
                if member.heard_ns is None
                else round((now_ns - member.heard_ns) / 1e9, 3),
            }
            for box, member in sorted(self._members.items())
        ]

"""The members of the site as one box knows them, from the boxes themselves and from gossip.

This module uses no sockets and no clock: time is an argument. A box believes what another says
about itself. About third boxes it accepts gossip that is more recent than its own knowledge. Only
its own experience tells it whether a box is reachable: a cut cable may affect one box and not
another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scheduler.address import parse_address
from scheduler.config.neighbours import BOX_NAME
from scheduler.errors import Forbidden

State = Literal["up", "suspected", "gone", "left"]

SUSPECT_NS = 700_000_000
"""A box not heard from for this long, about three reports, is sent nothing."""

GONE_NS = 10_000_000_000
"""After this long it is reported as gone; this box still tries to connect to it."""

FORGET_NS = 3_600_000_000_000
"""A box that nobody has heard from for this long is no longer a member."""

_ENTRY = (str, str, int, int, bool)
"""Types of a gossip entry: name, address, incarnation, age in milliseconds, left."""

_NAME = re.compile(BOX_NAME)
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,64}")

MOST_MEMBERS = 256
"""No more members than this are accepted: every box keeps a connection to every other one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a box says about itself.

    Attributes:
        box: Its name, unique within the site.
        address: The URL of its native door.
        incarnation: Random number of this run of its scheduler; a restart changes it.

    Raises:
        ValueError: The name, address or incarnation is not valid.
    """

    box: str
    address: str
    incarnation: int

    def __post_init__(self) -> None:
        """Refuses names that could be mistaken for devices, and sockets local to a machine."""
        if _NAME.fullmatch(self.box) is None:
            raise ValueError(f"{self.box!r:.80} is not a valid name for a box")
        if parse_address(self.address).scheme == "unix":
            raise ValueError(f"{self.address!r:.80} is local to that machine")
        if type(self.incarnation) is not int:  # gossip of a bool would be rejected everywhere
            raise ValueError(f"{self.incarnation!r:.80} is not an incarnation number")


@dataclass(slots=True)
class Member:
    """Another box.

    Attributes:
        who: What it last said about itself, or others said about it.
        told_ns: When any box last heard from it, as far as known here.
        heard_ns: When this box last heard from it; None if never.
        left: Whether it announced that it was leaving.
        version: The version of laxity that it said it runs; empty if it did not say.
    """

    who: Identity
    told_ns: int
    heard_ns: int | None
    left: bool = False
    version: str = ""

    def state(self, now_ns: int) -> State:
        """Its state as seen from this box."""
        if self.left:
            return "left"
        if self.heard_ns is None:
            return "gone"
        silent_ns = now_ns - self.heard_ns
        return "up" if silent_ns < SUSPECT_NS else "suspected" if silent_ns < GONE_NS else "gone"


class Members:
    """The members of a site other than this box.

    Args:
        own: The name of this box.
    """

    def __init__(self, own: str) -> None:
        """Knows no members."""
        self._own = own
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, box: str) -> Member | None:
        """The member of that name."""
        return self._members.get(box)

    def introduced(self, who: Identity, now_ns: int, version: object = None) -> None:
        """Adds or updates a box that has introduced itself.

        Raises:
            Forbidden: Its name is taken by another box, or there are too many boxes.
        """
        if who.box == self._own:
            raise Forbidden(f"two boxes are called {who.box!r}; give one of them another name")
        known = self._members.get(who.box)
        if known is None:
            if len(self._members) >= MOST_MEMBERS:
                raise Forbidden(f"the site has {MOST_MEMBERS} other boxes already")
            known = self._members[who.box] = Member(who, now_ns, now_ns)
            known.version = _version_from(version)
            return
        elsewhere = known.who.address != who.address
        if elsewhere and known.who.incarnation != who.incarnation and known.state(now_ns) == "up":
            raise Forbidden(
                f"another box is called {who.box!r}, at {known.who.address}; "
                "each box needs a name of its own"
            )
        known.who, known.left, known.version = who, False, _version_from(version)
        known.told_ns = known.heard_ns = now_ns

    def heard(self, box: str, now_ns: int) -> None:
        """Notes that a report from a box has arrived."""
        member = self._members.get(box)
        if member is not None:
            member.told_ns = member.heard_ns = now_ns

    def left(self, box: str) -> None:
        """Notes that a box has announced that it is leaving."""
        member = self._members.get(box)
        if member is not None:
            member.left = True

    def forget(self, now_ns: int) -> None:
        """Drops members that nobody has heard from for `FORGET_NS`."""
        for box, member in list(self._members.items()):
            if now_ns - member.told_ns > FORGET_NS:
                del self._members[box]

    # -- gossip

    def gossip(self, now_ns: int) -> list[list[Any]]:
        """Entries for other boxes: name, address, incarnation, age in milliseconds, left."""
        return [
            [m.who.box, m.who.address, m.who.incarnation, (now_ns - m.told_ns) // 10**6, m.left]
            for m in self._members.values()
        ]

    def told(self, entries: Sequence[Any], now_ns: int) -> None:
        """Merges another box's gossip, where it is more recent.

        Raises:
            ValueError: The entries are not in the form that `gossip` returns.
        """
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != len(_ENTRY):
                raise ValueError(f"not a member entry: {entry!r:.100}")
            box, address, incarnation, age_ms, left = entry
            if any(type(v) is not kind for v, kind in zip(entry, _ENTRY, strict=True)):
                raise ValueError(f"not a member entry: {entry!r:.100}")
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
                known.who, known.left, known.version = who, left, ""
            elif left:
                known.left = True

    # -- inspection

    def is_alone(self, now_ns: int) -> bool:
        """Whether no other box is up; also True if there are none."""
        return not any(m.state(now_ns) == "up" for m in self._members.values())

    def describe(self, now_ns: int) -> list[dict[str, Any]]:
        """All members, for people and programs.

        `heard_s` is None for one never heard from, and `version` for one that does not say it.
        """
        return [
            {
                "name": box,
                "address": member.who.address,
                "state": member.state(now_ns),
                "version": member.version or None,
                "heard_s": None
                if member.heard_ns is None
                else round((now_ns - member.heard_ns) / 1e9, 3),
            }
            for box, member in sorted(self._members.items())
        ]


def _version_from(said: object) -> str:
    """The version in a message of a box; empty if there is none, as from older ones."""
    return said if isinstance(said, str) and _VERSION.fullmatch(said) else ""

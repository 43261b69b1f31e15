"""Links: recordings as functions of time, and an emulator that real connections pass through."""

from replay.links.emulator import LinkCounters, LinkEmulator
from replay.links.one_way import OneWay
from replay.links.opening import LINK_FORMATS, link_format, open_link, open_links
from replay.links.trace import LOST, Capacity, Delay, LinkTrace, join

__all__ = [
    "LINK_FORMATS",
    "LOST",
    "Capacity",
    "Delay",
    "LinkCounters",
    "LinkEmulator",
    "LinkTrace",
    "OneWay",
    "join",
    "link_format",
    "open_link",
    "open_links",
]

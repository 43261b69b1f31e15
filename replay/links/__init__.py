"""Recorded links: round trips, losses and capacity as functions of time."""

from replay.links.opening import LINK_FORMATS, open_link
from replay.links.trace import LOST, Capacity, Delay, LinkTrace, join

__all__ = ["LINK_FORMATS", "LOST", "Capacity", "Delay", "LinkTrace", "join", "open_link"]

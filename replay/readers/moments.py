"""Dates with a time of day, in the forms that traces use."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from replay.readers.lines import Lines, shown

EXAMPLE = "2023-11-16 18:15:46.6805900"

# Azure's traces of 2023 have units of 100 ns and no zone; the one of 2024, microseconds and +00:00.
# PostgreSQL writes +02, BigQuery " UTC", Ruby and git " +0200".
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
    r"(?: ?(Z|UTC|[+-]\d\d(?::?\d\d)?))?",
    re.ASCII,
)
_LEAP_S = 60


def is_moment(text: str) -> bool:
    """Whether a text looks like a date with a time."""
    return _MOMENT.fullmatch(text) is not None


class Moments:
    """Parses date-times, most of which share their minute with the one before.

    Args:
        lines: The file, for errors.
        name: What the file calls them.
    """

    def __init__(self, lines: Lines, name: str) -> None:
        """Begins with no minute known."""
        self._lines = lines
        self._name = name
        self._minute, self._minute_s = "", 0

    def ns(self, text: str) -> int:
        """Nanoseconds since 1970; a time without a zone is in UTC.

        Raises:
            TraceError: The text is no date with a time.
        """
        match = _MOMENT.fullmatch(text)
        if match is None:
            raise self._lines.error(f"{self._name} is {shown(text)}", f"one like {EXAMPLE}")
        head, seconds, fraction, zone = match.groups(default="")
        second = int(seconds or 0)
        if second > _LEAP_S:
            found = f"{self._name} is not a valid time (second {seconds})"
            raise self._lines.error(found, "a date and a time")
        if head + zone != self._minute:
            self._minute_s = self._epoch_s(head, zone)
            self._minute = head + zone
        return (self._minute_s + second) * 1_000_000_000 + int(fraction.ljust(9, "0"))

    def _epoch_s(self, minute: str, zone: str) -> int:
        hours, minutes = ("+00", "00") if zone in ("", "Z", "UTC") else (zone[:3], zone[3:][-2:])
        try:
            moment = datetime.fromisoformat(f"{minute}{hours}:{minutes or '00'}")
            return int(moment.astimezone(timezone.utc).timestamp())
        except (ValueError, OverflowError) as error:
            found = f"{self._name} is not a valid time ({error})"
            raise self._lines.error(found, "a date and a time") from None

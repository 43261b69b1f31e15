"""Round trips and losses from the raw output of `ping`.

A sequence number without a reply is a loss. Losses at the ends are known only if the first and last
lines of ping's output are there. Probes are one interval apart: the given one, else that of the
summary (its time over its count), else a second. Runs that were appended to one log follow each
other without the time between them, and have the same interval.
"""

from __future__ import annotations

import re
from array import array

from replay.links.trace import LOST, Delay, LinkTrace
from replay.readers.lines import Lines, TraceError, shown

MOST_SAMPLES = 50_000_000
"""More than a year and a half at one per second."""

_DEFAULT_INTERVAL_S = 1.0
_ALIKE = 1.5
"""Measured intervals of runs with the same setting differ by at most this factor."""

_WRAP = 1 << 16
"""A sequence number has 16 bits on the wire."""

_REPLY = re.compile(r"seq[= ](\d{1,9})\b.*?\btime[=<]\s*(\d+(?:\.\d+)?)\s*ms", re.ASCII)
_SUMMARY = re.compile(r"(\d{1,12}) packets transmitted(?:.*time (\d{1,15})\s*ms)?", re.ASCII)
_LOOKS_LIKE = "64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=14.4 ms"


def read(lines: Lines, interval_s: float | None = None) -> LinkTrace:
    """Reads a whole log; lines that are no reply are skipped.

    Raises:
        TraceError: There is no reply in it, or one that can't be parsed.
    """
    samples: array[int] = array("q")
    base: int | None = None
    first = last = 0
    begun = False
    pace = _Pace()
    for line in lines:
        if line.startswith("PING "):
            begun, base, first = True, None, len(samples)
        elif (summary := _SUMMARY.search(line)) is not None:
            sent, total_ms = summary.groups()
            # A log without its first lines has fewer samples than were sent.
            if begun:
                _pad(lines, samples, first + int(sent))
            if interval_s is None and total_ms and int(total_ms) and int(sent) > 1:
                pace.add(lines, int(total_ms), int(sent) - 1)
        elif " bytes from " in line:
            sequence, rtt_ns = _reply(lines, line)
            if base is None:
                base = last = min(sequence, 1) if begun else sequence
            # Back by less than half the number range is a late reply, not a wrap-around.
            step = (sequence - last + _WRAP // 2) % _WRAP - _WRAP // 2
            last = max(last, last + step)
            place = first + last + min(step, 0) - base
            _pad(lines, samples, place + 1)
            # The first reply counts, duplicates don't.
            if place >= first and samples[place] == LOST:
                samples[place] = rtt_ns
    if max(samples, default=LOST) == LOST:
        raise TraceError(lines.path, None, "no reply of ping", f"lines like {_LOOKS_LIKE}")
    if pace.gaps:
        interval_s = pace.total_ms / 1e3 / pace.gaps
    interval_ns = round((interval_s or _DEFAULT_INTERVAL_S) * 1e9)
    return LinkTrace(delay=Delay(samples, interval_ns))


class _Pace:
    """The interval between probes over all runs of a log, which must be about the same."""

    def __init__(self) -> None:
        self.total_ms = self.gaps = 0
        self._first_ms = self._least_ms = self._most_ms = 0.0

    def add(self, lines: Lines, run_ms: int, gaps: int) -> None:
        interval_ms = run_ms / gaps
        if not self.gaps:
            self._first_ms = self._least_ms = self._most_ms = interval_ms
        self.total_ms += run_ms
        self.gaps += gaps
        self._least_ms = min(self._least_ms, interval_ms)
        self._most_ms = max(self._most_ms, interval_ms)
        if self._most_ms > _ALIKE * self._least_ms:
            found = f"a run of ping with {interval_ms:.4g} ms between its probes"
            expected = f"{self._first_ms:.4g} ms, as in the first, or an interval given"
            raise lines.error(found, expected)


def _reply(lines: Lines, line: str) -> tuple[int, int]:
    match = _REPLY.search(line)
    if match is None:
        raise lines.error(f"a reply {shown(line)}", f"one like {_LOOKS_LIKE}")
    return int(match[1]), lines.ns_of_ms(match[2], "time")


def _pad(lines: Lines, samples: array[int], count: int) -> None:
    if count > MOST_SAMPLES:
        raise lines.error(f"{count:,} probes", f"at most {MOST_SAMPLES:,}")
    if count > len(samples):
        samples.extend(array("q", [LOST]) * (count - len(samples)))

"""What is true of a fleet, whatever its scheduler believes: links, slow spells, stalls."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeVar

from replay.bound.model import FAR_NS, SharedLink
from replay.links import LinkTrace

RESEND_NS = 200_000_000
"""What a link loses is sent again after this time, TCP's minimum."""

FIRST_SEED = 1
"""The seed with which a journal's requests meet devices at the pace they had at that time."""

UNKNOWN_NS = 1_000_000_000
"""How long a device keeps a randomly chosen pace."""

_ATTEMPTS = 20
_NO_LINK = LinkTrace()


@dataclass(frozen=True, slots=True)
class Link:
    """The link to another box.

    Attributes:
        rtt_ns: The round trip of a small message; a recording's delay is added.
        byte_ns: Nanoseconds per byte; the time that a recording's capacity needs is added.
        trace: A recording; None if the link is constant.
    """

    rtt_ns: int = 0
    byte_ns: float = 0.0
    trace: LinkTrace | None = None

    def carry_ns(self, begun_ns: int, size_bytes: int) -> int:
        """How long `size_bytes` keep the link busy, from `begun_ns` on."""
        trace = self.trace or _NO_LINK
        return trace.transfer_ns(begun_ns, size_bytes) + int(self.byte_ns * size_bytes)

    def out_ns(self, sent_ns: int, size_bytes: int) -> int:
        """How long `size_bytes` take to arrive on an empty link, if sent at `sent_ns`."""
        trace = self.trace or _NO_LINK
        left_ns = self._left_ns(sent_ns)
        way_ns = (self.rtt_ns + trace.rtt_ns(left_ns)) // 2
        return left_ns - sent_ns + self.carry_ns(left_ns, size_bytes) + way_ns

    def back_ns(self, sent_ns: int) -> int:
        """How long a small answer takes to return."""
        trace = self.trace or _NO_LINK
        left_ns = self._left_ns(sent_ns)
        return left_ns - sent_ns + (self.rtt_ns + trace.rtt_ns(left_ns) + 1) // 2

    def _left_ns(self, sent_ns: int) -> int:
        """When the attempt that gets through is sent."""
        delay = self.trace.delay if self.trace is not None else None
        if delay is None or not delay.loss:
            return sent_ns
        for _ in range(_ATTEMPTS):
            heard_ns = delay.heard_ns(sent_ns)
            if heard_ns == sent_ns:
                break
            sent_ns += -(-(heard_ns - sent_ns) // RESEND_NS) * RESEND_NS
        # No attempt gets through if losses are as regular as the attempts.
        return delay.heard_ns(sent_ns)

    def expected(self) -> tuple[int, float]:
        """What a scheduler that knows the link expects: ns for a round trip, ns per byte."""
        rtt_ns, byte_ns = self.rtt_ns, self.byte_ns
        if self.trace is not None and self.trace.delay is not None:
            rtt_ns += self.trace.delay.quantile_ns(0.5)
        if self.trace is not None and self.trace.capacity is not None:
            byte_ns += 8e9 / self.trace.capacity.mean_bps
        return rtt_ns, byte_ns

    def least_ns(self) -> tuple[int, int]:
        """The least time there, and back."""
        rtt_ns = self.rtt_ns
        if self.trace is not None and self.trace.delay is not None:
            rtt_ns += self.trace.delay.quantile_ns(0.0)
        return rtt_ns // 2, rtt_ns // 2

    def shared(self, name: str, share: float = 1.0) -> SharedLink:
        """What it carries, for the bounds, if inputs are sent at this share of their size."""
        if self.trace is not None and self.trace.capacity is not None:
            capacity = self.trace.capacity
            byte_ns = capacity.period_ns / capacity.period_bytes
            return SharedLink(name, byte_ns * share, math.ceil(capacity.burst_bytes * byte_ns))
        return SharedLink(name, self.byte_ns * share)


Steps = tuple[tuple[int, float], ...]
"""Pairs of a time and the factor on the times of batches that start from then on, in order."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """The pace of a device over time, as a journal shows it.

    Attributes:
        steps: Pairs of a time and the factor on the usual batch times from then on, in order. The
            factor is None where the pace is unknown, since no batch ran near that time.
        usual_ns: The usual time by model, variant and batch size.
        cycle_ns: The length after which the steps repeat.
        begin_ns: The position in the cycle at time 0 with `FIRST_SEED`, if the played requests are
            those of the journal. With other seeds, or if None, it is random.
        known: The factors one of which is chosen at random where the pace is unknown. Before
            `placed` it holds only 1, the usual pace.
        seed: The seed of the random choices.
        told_ns: For each step, the usual time of the batch that shows its pace. So much work is
            done at that pace, and the rest of a longer batch at those that are seen from then on:
            a batch of 0.1 ms that was held up for 10 ms does not make one of 10 ms take 1 s. Empty
            if each step holds for all batches that start in it.
    """

    steps: tuple[tuple[int, float | None], ...]
    usual_ns: Mapping[tuple[str, str, int], int] = field(hash=False)
    cycle_ns: int
    begin_ns: int | None = None
    known: tuple[float, ...] = (1.0,)
    seed: int | str = FIRST_SEED
    told_ns: tuple[int, ...] = ()

    def placed(self, seed: int | str) -> Tempo:
        """The tempo with `begin_ns` set, the same for all devices with this seed and cycle."""
        if self.begin_ns is not None and seed == FIRST_SEED:
            return self
        begin_ns = random.Random(f"{seed} tempo").randrange(self.cycle_ns)
        known = tuple(factor for _, factor in self.steps if factor is not None)
        return replace(self, begin_ns=begin_ns, known=known or self.known, seed=seed)

    @property
    def least(self) -> float:
        """The smallest factor on the usual batch times."""
        return min(1.0 if factor is None else factor for _, factor in self.steps)

    def factor(self, at_ns: int) -> float:
        """The factor on the usual time of a batch that starts at `at_ns`."""
        factor = _step_at(self.steps, self._here_ns(at_ns))
        if factor is not None:
            return factor
        return random.Random(f"{self.seed} pace {at_ns // UNKNOWN_NS}").choice(self.known)

    def took_ns(self, at_ns: int, work_ns: float) -> float:
        """How long a batch takes that starts at `at_ns`, and at the usual pace takes `work_ns`."""
        factor = self.factor(at_ns)
        place = self._place(at_ns)
        if not self.told_ns or self.steps[place][1] is None or work_ns <= self.told_ns[place]:
            return work_ns * factor
        first_ns = self.told_ns[place] * factor
        return first_ns + self._rest_ns(at_ns + int(first_ns), work_ns - self.told_ns[place])

    def _rest_ns(self, from_ns: int, work_ns: float) -> float:
        """How long work takes that goes at the pace of each step that it meets."""
        took_ns, place, here_ns = 0.0, self._place(from_ns), self._here_ns(from_ns)
        while True:
            factor = self.steps[place][1]
            if factor is None:
                return took_ns + work_ns * self.factor(from_ns + int(took_ns))
            is_last = place + 1 == len(self.steps)
            until_ns = self.cycle_ns if is_last else self.steps[place + 1][0]
            if work_ns * factor <= until_ns - here_ns:
                return took_ns + work_ns * factor
            work_ns -= (until_ns - here_ns) / factor
            took_ns += until_ns - here_ns
            place, here_ns = (0, 0) if is_last else (place + 1, until_ns)

    def _here_ns(self, at_ns: int) -> int:
        return (at_ns + (self.begin_ns or 0)) % self.cycle_ns

    def _place(self, at_ns: int) -> int:
        return bisect_right(self.steps, self._here_ns(at_ns), key=itemgetter(0)) - 1


@dataclass(frozen=True, slots=True)
class Course:
    """The slow-downs and stalls of a target over time.

    Attributes:
        slow: Slow spells and drift.
        stalls: Spans in which nothing moves there, in order and disjoint.
        tempo: Its pace apart from that; None if that pace is constant.
    """

    slow: Steps = ()
    stalls: tuple[tuple[int, int], ...] = ()
    tempo: Tempo | None = None

    def took_ns(self, at_ns: int, service_ns: int) -> int:
        """How long a batch takes that starts at `at_ns`, apart from stalls."""
        work_ns = service_ns * _step_at(self.slow, at_ns)
        return max(1, int(work_ns if self.tempo is None else self.tempo.took_ns(at_ns, work_ns)))

    def freed_ns(self, at_ns: int) -> int:
        """When something that is to move at `at_ns` really does."""
        for from_ns, until_ns in self.stalls:
            if from_ns <= at_ns < until_ns:
                return until_ns
        return at_ns

    def ends_ns(self, begun_ns: int, service_ns: int) -> int:
        """When a batch ends that makes no progress during stalls."""
        if self.slow or self.tempo is not None:
            service_ns = self.took_ns(begun_ns, service_ns)
        end_ns = begun_ns + service_ns
        for from_ns, until_ns in self.stalls:
            if begun_ns < until_ns and end_ns > from_ns:
                end_ns += until_ns - max(from_ns, begun_ns)
        return end_ns


_Factor = TypeVar("_Factor", float, "float | None")


def _step_at(steps: Sequence[tuple[int, _Factor]], at_ns: int) -> _Factor | float:
    place = bisect_right(steps, at_ns, key=itemgetter(0))
    return steps[place - 1][1] if place else 1.0


class _Way:
    """A link in use: bytes wait for the bytes sent before them."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free_ns = 0

    def lands_ns(self, size_bytes: int, sent_ns: int) -> int:
        begun_ns = max(sent_ns, self._free_ns)
        self._free_ns = begun_ns + self.link.carry_ns(begun_ns, size_bytes)
        return begun_ns + self.link.out_ns(begun_ns, size_bytes)


class FleetWorld:
    """The world of one fleet, for the simulator.

    Args:
        links: By target id, for far targets. Targets with the identical link share it.
        courses: By target id, for targets with slow-downs, stalls or a tempo.
        widths: By target id, for targets that run several batches at once.
        submit_ns: By target id, for targets that share a processor with the scheduler.
        handover_ns: By target id, for targets that don't begin an arriving batch at once.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        courses: Mapping[str, Course],
        widths: Mapping[str, int],
        submit_ns: Mapping[str, int],
        handover_ns: Mapping[str, int],
    ) -> None:
        """Makes one queue for each link."""
        ways = {id(link): _Way(link) for link in links.values()}
        self._ways = {target_id: ways[id(link)] for target_id, link in links.items()}
        self._courses = courses
        self._widths = widths
        self._submit_ns = submit_ns
        self._handover_ns = handover_ns

    def width(self, target_id: str) -> int:
        """As in `World`."""
        return self._widths.get(target_id, 1)

    def is_far(self, target_id: str) -> bool:
        """As in `World`."""
        return target_id in self._ways

    def lands_ns(self, target_id: str, size_bytes: int, sent_ns: int) -> int:
        """As in `World`. A stall of a far target is a stall of its link."""
        left_ns = self._freed_ns(target_id, sent_ns)
        return self._ways[target_id].lands_ns(size_bytes, left_ns)

    def heard_ns(self, target_id: str, ended_ns: int) -> int:
        """As in `World`."""
        left_ns = self._freed_ns(target_id, ended_ns)
        return left_ns + self._ways[target_id].link.back_ns(left_ns)

    def handover_ns(self, target_id: str) -> int:
        """As in `World`."""
        return self._handover_ns.get(target_id, 0)

    def submit_ns(self, target_id: str) -> int:
        """As in `World`."""
        return self._submit_ns.get(target_id, 0)

    def ends_ns(self, target_id: str, begun_ns: int, service_ns: int) -> int:
        """As in `World`."""
        course = self._courses.get(target_id)
        if course is None:
            return begun_ns + service_ns
        if target_id in self._ways:
            return begun_ns + course.took_ns(begun_ns, service_ns)
        return course.ends_ns(begun_ns, service_ns)

    def _freed_ns(self, target_id: str, at_ns: int) -> int:
        course = self._courses.get(target_id)
        return at_ns if course is None else course.freed_ns(at_ns)


# -- scripts


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to a target.

    Attributes:
        at_ns: The time.
        target_id: The target.
        what: `down` and `up` are reported to the scheduler; `stall` and `slow` are not.
        for_ns: How long a stall or a slow spell lasts; None is for ever, of a slow spell. For a
            target that goes down, the time after which it is announced to be back; None announces
            nothing.
        factor: For a slow spell, the factor on all times.
    """

    at_ns: int
    target_id: str
    what: str
    for_ns: int | None = None
    factor: float = 1.0


def course_of(
    script: Sequence[Incident], target_id: str, drift: Sequence[tuple[int, float]]
) -> Course:
    """The course of a target, from the script and the target's own drift."""
    own = [incident for incident in script if incident.target_id == target_id]
    spells = [
        (i.at_ns, FAR_NS if i.for_ns is None else i.at_ns + i.for_ns, i.factor)
        for i in own
        if i.what == "slow"
    ]
    edges = {edge for start, end, _ in spells for edge in (start, end)}
    edges |= {at_ns for at_ns, _ in drift}
    slow = []
    for at_ns in sorted(edges - {FAR_NS}):
        factor = math.prod([f for start, end, f in spells if start <= at_ns < end])
        drifts = [f for since_ns, f in drift if since_ns <= at_ns]
        slow.append((at_ns, factor * (drifts[-1] if drifts else 1.0)))
    stalls = [(i.at_ns, i.at_ns + (i.for_ns or 0)) for i in own if i.what == "stall"]
    return Course(tuple(slow), tuple(_merged(stalls)))


def spans_up(script: Sequence[Incident], target_id: str) -> list[tuple[int, int]]:
    """The spans in which a target is up without losing what it runs."""
    spans: list[tuple[int, int]] = []
    since: int | None = -FAR_NS
    for incident in script:
        if incident.target_id != target_id:
            continue
        if incident.what == "down" and since is not None:
            spans.append((since, incident.at_ns))
            since = None
        elif incident.what == "up":
            if since is not None and since < incident.at_ns:
                spans.append((since, incident.at_ns))  # a replacement loses what is running
            since = incident.at_ns
    if since is not None:
        spans.append((since, FAR_NS))
    return spans


def without_stalls(
    up: Sequence[tuple[int, int]], course: Course, longest_ns: int
) -> list[tuple[int, int]]:
    """Cuts stalls out of the spans, except for the length of the longest batch at their start.

    A batch that a stall interrupts does the rest of its work after the stall. Here that rest is
    counted at the start of the stall, which is never too late.
    """
    longest_ns = int(longest_ns * max([1.0, *(factor for _, factor in course.slow)]) + 1)
    spans = deque(up)
    kept: list[tuple[int, int]] = []
    while spans:
        from_ns, until_ns = spans.popleft()
        for stall_ns, over_ns in course.stalls:
            ends_ns = stall_ns + longest_ns
            if from_ns < stall_ns and ends_ns < over_ns < until_ns:
                spans.appendleft((over_ns, until_ns))
                until_ns = ends_ns
                break
        kept.append((from_ns, until_ns))
    return kept


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for from_ns, until_ns in sorted(spans):
        if merged and from_ns <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until_ns, merged[-1][1])
        else:
            merged.append((from_ns, until_ns))
    return merged

"""Cameras that submit scans at their own pace, whatever comes back: an open-loop load."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay.live.open_loop import SETTLE_S, in_time, outcome_of, settle
from scheduler import AsyncClient

JITTER = 0.3
"""The share of its period by which a camera may be early or late with a scan."""

TOLERATED_LAG_MS = 5.0
"""A generator whose 99th percentile of lag is above this has spoilt its own measurement."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A source that submits one scan after another.

    Attributes:
        number: Its number, from 0.
        fps: Scans per second.
        deadline_ms: Time from sending a scan until its result has to be there.
        offset: When it sends its first scan, as a share of its period.
    """

    number: int
    fps: float
    deadline_ms: float
    offset: float


@dataclass(frozen=True, slots=True)
class Shot:
    """A scan that is due to be sent.

    Attributes:
        at_s: When it is due, from the start.
        camera: The number of the camera.
        scan: The index of the held-out scan.
        deadline_ms: The deadline, counted from when it is sent.
    """

    at_s: float
    camera: int
    scan: int
    deadline_ms: float


@dataclass(frozen=True, slots=True)
class Scans:
    """The scans that cameras send.

    Attributes:
        images: float32 [n, 1, 8, 8], 0 for paper to 16 for ink.
        labels: uint8 [n], the digits that they show.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(slots=True)
class Record:
    """How a shot ended; times are seconds from the start.

    Attributes:
        shot: The shot that was due.
        accept_late: Whether it asked for a late result too.
        budget_ms: The deadline that the box was told.
        sent_s: When it was sent.
        ended_s: When its end was known; NaN if it has none.
        outcome: The name of its outcome; None if it has none.
        correct: Whether the answer was right; None without an answer.
        reason: Why there was no answer.
    """

    shot: Shot
    accept_late: bool
    budget_ms: float
    sent_s: float
    ended_s: float = math.nan
    outcome: str | None = None
    correct: bool | None = None
    reason: str = ""

    @property
    def latency_ms(self) -> float:
        """Time from sending to the end."""
        return (self.ended_s - self.sent_s) * 1e3

    @property
    def verdict(self) -> str | None:
        """The outcome by the camera's deadline, which the box may not have been told."""
        if self.correct is None:
            return self.outcome
        if self.budget_ms > self.shot.deadline_ms:
            return "completed" if self.latency_ms <= self.shot.deadline_ms else "late"
        return self.outcome

    @property
    def lag_ms(self) -> float:
        """How late the generator sent it."""
        return max(0.0, (self.sent_s - self.shot.at_s) * 1e3)


@dataclass(slots=True)
class Tally:
    """Counts of a run, shown while it lasts.

    Attributes:
        sent: Requests sent so far.
        verdicts: Requests per verdict.
        answered: Requests with an answer.
        correct: Requests with a right answer.
        latencies_ms: Latencies of the answers.
    """

    sent: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    correct: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Counts a record that has ended."""
        self.verdicts[record.verdict or "none"] += 1
        if record.correct is not None:
            self.answered += 1
            self.correct += record.correct
            self.latencies_ms.append(record.latency_ms)


# -- the schedule


def make_cameras(count: int, rate: float, seed: int) -> list[Camera]:
    """Cameras that together send `rate` scans per second, with deadlines from 30 to 100 ms.

    The same seed gives the same cameras at any rate, except for their pace.
    """
    chance = random.Random(f"{seed} cameras")
    steps = max(1, count - 1)
    return [
        Camera(number, rate / count, 30 + 70 * number / steps, chance.random())
        for number in range(count)
    ]


def schedule(
    cameras: Iterable[Camera], seconds: float, scans: int, seed: int, jitter: float = JITTER
) -> list[Shot]:
    """Everything the cameras are due to send, in order of time.

    Args:
        cameras: The cameras.
        seconds: How long they send.
        scans: The number of scans to choose from.
        seed: The same seed gives the same schedule.
        jitter: As in `JITTER`; below 0.5, so that a camera's scans keep their order.

    Raises:
        ValueError: The jitter is not from 0 to below 0.5.
    """
    if not 0 <= jitter < 0.5:
        raise ValueError(f"jitter is from 0 to below 0.5, not {jitter!r}")
    shots = []
    for camera in cameras:
        chance = random.Random(f"{seed} camera {camera.number}")
        for frame in range(math.ceil(seconds * camera.fps) + 1):
            shift = chance.uniform(-jitter, jitter)
            scan = chance.randrange(scans)
            at_s = max(0.0, (frame + camera.offset + shift) / camera.fps)
            if at_s < seconds:
                shots.append(Shot(at_s, camera.number, scan, camera.deadline_ms))
    return sorted(shots, key=lambda shot: (shot.at_s, shot.camera))


# -- the run


class Run:
    """One schedule played against a box.

    Args:
        client: A connected client.
        model: The model that reads the scans; its input is `image`, its output `scores`.
        variant: The variant to use; None leaves it to the box's policy.
        scans: The scans.
        accept_late: Whether to ask for late results too.
        budget_ms: What to tell the box instead of the deadline; None tells the deadline.
    """

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        variant: str | None,
        scans: Scans,
        *,
        accept_late: bool = False,
        budget_ms: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins before the first shot."""
        self.tally = Tally()
        self.records: list[Record] = []
        self.started_s = math.nan
        self._client = client
        self._model = model
        self._variant = variant
        self._scans = scans
        self._accept_late = accept_late
        self._budget_ms = budget_ms
        self._clock = clock

    def now_s(self) -> float:
        """Seconds from the start; NaN before it."""
        return self._clock() - self.started_s

    async def play(self, shots: Sequence[Shot]) -> list[Record]:
        """Sends each shot when it is due, and waits until all have ended.

        A shot is never held back because others are still out. Requests that have not ended
        `SETTLE_S` after the longest budget are cancelled; their records have no outcome.
        """
        self.started_s = self._clock()
        out: set[asyncio.Future[Any]] = set()
        longest_s = 0.0
        try:
            async for shot in in_time(shots, lambda shot: shot.at_s, self.now_s):
                out.add(future := self._send(shot))
                future.add_done_callback(out.discard)
            longest_s = max((record.budget_ms for record in self.records), default=0.0) / 1e3
            longest_s += SETTLE_S
        finally:
            await settle(out, longest_s)
        return self.records

    def _send(self, shot: Shot) -> asyncio.Future[Any]:
        budget_ms = self._budget_ms or shot.deadline_ms
        record = Record(shot, self._accept_late, budget_ms, self.now_s())
        self.records.append(record)
        self.tally.sent += 1
        future = self._client.submit(
            self._model,
            {"image": self._scans.images[shot.scan]},
            deadline_ms=budget_ms,
            variant=self._variant,
            accept_late=self._accept_late,
        )
        future.add_done_callback(lambda ended: self._note(record, ended))
        return future

    def _note(self, record: Record, ended: asyncio.Future[Any]) -> None:
        if ended.cancelled():
            return
        record.ended_s = self.now_s()
        record.outcome, record.reason = outcome_of(ended)
        if ended.exception() is None:
            result = ended.result()
            record.correct = bool(result["scores"].argmax() == self._scans.labels[record.shot.scan])
        self.tally.add(record)


def lag_warning(records: Sequence[Record]) -> str | None:
    """A warning if the generator did not keep to its schedule; None if it did."""
    if not records:
        return None
    p99 = float(np.percentile([record.lag_ms for record in records], 99))
    if p99 <= TOLERATED_LAG_MS:
        return None
    return (
        f"the load generator was late itself: 1 % of its requests went out {p99:.1f} ms or more "
        "after their time, so the box had an uneven load"
    )

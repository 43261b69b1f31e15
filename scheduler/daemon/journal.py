"""The scheduler's journal: every event and command, in files of bounded size.

The event loop encodes each event, which costs a few microseconds; a thread (`JournalWriter`) writes
the bytes. Encoding in the thread would cost as much, because there is one interpreter lock, and
would hold up the loop whenever the thread has the lock. If the disk is too slow, events are left
out, counted, and marked in the file; the loop never waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from scheduler.core.commands import Command
from scheduler.core.events import (
    Event,
    PolicySwapped,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
)
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.daemon.journal_writer import JournalBounds, JournalWriter, Mark, Part, open_part
from scheduler.journal_format import (
    SUFFIX,
    Encoder,
    Header,
    JournalledPolicy,
    Target,
    encode_header,
    plain_options,
)
from scheduler.policy_loading import NamedPolicy

log = structlog.get_logger()


class Journal:
    """Records the events and commands of one scheduler.

    Args:
        folder: Where the files go; created if needed. The oldest files there are removed, whoever
            wrote them.
        policy: The first policy.
        limits: The scheduler's limits.
        bounds: Limits on the journal's size.
        clock_ns: The scheduler's clock.
        open_part: Opens a new file.
    """

    def __init__(
        self,
        folder: Path,
        policy: NamedPolicy,
        limits: Limits,
        bounds: JournalBounds = JournalBounds(),  # noqa: B008
        clock_ns: Callable[[], int] = time.monotonic_ns,
        open_part: Callable[[Path], BinaryIO] = open_part,
    ) -> None:
        """Begins the first file of a run."""
        self.folder = folder
        wall_ns = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns // 10**9))
        self._run = f"{stamp}.{wall_ns // 1000 % 10**6:06d}Z-{os.getpid()}"
        self._policy = JournalledPolicy(policy.name, plain_options(policy.options))
        self._limits = limits
        self._bounds = bounds
        self._version = metadata.version("laxity")
        self._targets: dict[str, Target] = {}
        self._part = 0
        self._part_bytes = self._full_bytes = 0
        self._skipped = 0
        self._told = 0
        self._encoder = Encoder(0, 0)
        self._writer = JournalWriter(folder, bounds, open_part)
        self._begin(clock_ns())

    @property
    def dropped(self) -> int:
        """The number of events missing from the files."""
        return self._skipped + self._writer.lost

    def status(self) -> dict[str, Any]:
        """The journal's folder, sizes and problem, for people and programs."""
        return {
            "folder": str(self.folder),
            "written_bytes": self._writer.taken_bytes,
            "waiting_bytes": self._writer.waiting_bytes,
            "dropped": self.dropped,
            "problem": self._writer.problem,
        }

    def note(
        self,
        at_ns: int,
        event: Event,
        commands: Sequence[Command],
        policy: NamedPolicy,
        failure: str | None = None,
    ) -> None:
        """Records one step of the scheduler; never waits and never raises.

        Args:
            at_ns: The time of the step.
            event: The event the scheduler handled.
            commands: The commands it gave.
            policy: The policy that decides from then on.
            failure: What the policy did wrong, if it failed.
        """
        if type(event) in _RARE:
            self._keep_up(event, policy)
        writer = self._writer
        if writer.waiting_bytes > self._bounds.waiting_bytes:
            self._skipped += 1
            return
        try:
            if writer.failed or self._part_bytes > self._full_bytes:
                self._begin(at_ns)
            missing = self._skipped + writer.unmarked - self._told
            if missing:
                self._told += missing
                self._mark(self._encoder.gap(at_ns, missing), missing)
            self._put(self._encoder.entry(at_ns, event, commands, self._policy.options, failure))
        except Exception:  # requests matter more than the journal
            log.exception("an event could not be journalled")
            self._skipped += 1
            self._begin(at_ns)

    def close(self) -> None:
        """Writes what is queued, waiting at most `CLOSE_S`."""
        self._mark(self._encoder.closed())
        self._writer.close()

    def _put(self, data: bytes) -> None:
        size = len(data)
        self._part_bytes += size
        self._writer.put(data, size)

    def _mark(self, data: bytes, missing: int = 0) -> None:
        self._part_bytes += len(data)
        self._writer.put(Mark(data, missing), len(data))

    def _begin(self, at_ns: int) -> None:
        """Starts a new file, which can be read on its own."""
        if self._part and not self._writer.failed:
            self._mark(self._encoder.closed())
        self._writer.failed = False
        self._part += 1
        self._encoder = Encoder(at_ns, self._encoder.last_id)
        header = Header(
            version=self._version,
            run=self._run,
            part=self._part,
            wall_ns=time.time_ns(),
            at_ns=at_ns,
            last_id=self._encoder.last_id,
            policy=self._policy,
            limits=self._limits,
            targets=tuple(self._targets.values()),
        )
        head = encode_header(header)
        self._part_bytes = len(head)
        self._full_bytes = max(self._bounds.bytes // self._bounds.files, 2 * len(head))
        path = self.folder / f"{self._run}-{self._part:06d}{SUFFIX}"
        self._writer.put(Part(path, head, self._full_bytes), len(head))

    def _keep_up(self, event: Event, policy: NamedPolicy) -> None:
        """Keeps the policy and targets up to date for the header of the next file."""
        targets = self._targets
        match event:
            case PolicySwapped():
                self._policy = JournalledPolicy(event.name, plain_options(policy.options))
            case TargetUp(spec):
                targets[spec.id] = Target(spec, up=True)
            case TargetDown(target_id, removed=True):
                targets.pop(target_id, None)
            case TargetDown(target_id) if target_id in targets:
                targets[target_id] = replace(targets[target_id], up=False)
            case TargetReport(target_id, offers) if target_id in targets:
                known = targets[target_id]
                spec = replace(known.spec, offers=_merged(known.spec.offers, offers))
                targets[target_id] = replace(known, spec=spec)
            case TargetWithdrew(target_id, variants) if target_id in targets:
                known = targets[target_id]
                left = [o for o in known.spec.offers if (o.model, o.variant) not in variants]
                spec = replace(known.spec, offers=tuple(left))
                targets[target_id] = replace(known, spec=spec)
            case TargetChanged(spec) if spec.id in targets:
                known = targets[spec.id]
                offers = _merged(known.spec.offers, spec.offers)
                targets[spec.id] = replace(known, spec=replace(spec, offers=offers))


_RARE = frozenset(
    {PolicySwapped, TargetUp, TargetDown, TargetReport, TargetWithdrew, TargetChanged}
)


def _merged(known: Iterable[Offer], new: Iterable[Offer]) -> tuple[Offer, ...]:
    by_name = {(offer.model, offer.variant): offer for offer in (*known, *new)}
    return tuple(by_name.values())

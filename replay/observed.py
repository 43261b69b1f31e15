"""What a daemon's batches really took, from its journal: the truth for a simulation of that box.

A profile is measured when a device has nothing else to do. While it serves, messages travel, other
devices use the same memory, and the scheduler needs a processor as well: batches take longer, and
differently so. A fleet from a journal tells the scheduler what the daemon's was told, and lets
batches take what they took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from replay.fleet import Device, Fleet, FleetError, Truth
from replay.journal import read_journal, targets
from replay.journal_files import Note, warn
from scheduler.core.commands import Command, Dispatch
from scheduler.core.events import BatchDone, BatchFailed, Event, Submitted, TargetDown, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.targets import TargetSpec

ENOUGH = 16
"""So many batches of one size tell by themselves what such batches take."""

Rung = tuple[str, str, int]
"""A model, its variant, and a batch size."""

Times = Mapping[Rung, tuple[int, ...]]
"""What batches took, in nanoseconds, in the order in which they were done."""


@dataclass(slots=True)
class _Run:
    rung: Rung
    lands_ns: int
    begun_ns: int | None = None


@dataclass(slots=True)
class _Watch:
    """What is known of one target while its journal is read."""

    spec: TargetSpec
    runs: dict[int, _Run] = field(default_factory=dict)
    found: dict[Rung, list[int]] = field(default_factory=dict)

    def begin(self, run_id: int, run: _Run) -> None:
        if len(self.runs) < self.spec.width:
            run.begun_ns = run.lands_ns
        self.runs[run_id] = run

    def end(self, run_id: int, now_ns: int, done: bool) -> None:
        run = self.runs.pop(run_id)
        if done and run.begun_ns is not None:
            self.found.setdefault(run.rung, []).append(max(1, now_ns - run.begun_ns))
        for next_run in list(self.runs.values())[: self.spec.width]:
            if next_run.begun_ns is None:
                next_run.begun_ns = max(next_run.lands_ns, now_ns)


def observed_times(
    steps: Iterable[tuple[int, Event | Command]], specs: Iterable[TargetSpec]
) -> dict[str, Times]:
    """What the batches of each target took, as its scheduler saw it.

    A batch begins when the message is there and what was sent before it is done, and ends when the
    scheduler hears of it. The usual time of the way is not part of it.

    Args:
        steps: Events and commands as `read_journal` yields them.
        specs: The targets.
    """
    watches = {spec.id: _Watch(spec) for spec in specs}
    sizes: dict[int, int] = {}
    places: dict[int, str] = {}
    for at_ns, step in steps:
        match step:
            case Submitted(requests):
                sizes.update((request.id, request.size_bytes) for request in requests)
            case Dispatch() if step.target_id in watches:
                watch = watches[step.target_id]
                size_bytes = sum(sizes.pop(i, 0) for i in step.request_ids)
                rung = (step.model, step.variant, len(step.request_ids))
                places[step.run_id] = step.target_id
                watch.begin(step.run_id, _Run(rung, at_ns + watch.spec.transfer(size_bytes)))
            case BatchDone(run_id) if run_id in places:
                watches[places.pop(run_id)].end(run_id, at_ns, not step.errors)
            case BatchFailed(run_id) if run_id in places:
                watches[places.pop(run_id)].end(run_id, at_ns, False)
            case TargetDown(target_id) | TargetUp(TargetSpec(id=target_id)):
                if target_id in watches:
                    watches[target_id].runs.clear()
                    places = {run: place for run, place in places.items() if place != target_id}
    return {
        target_id: {rung: tuple(times) for rung, times in watch.found.items()}
        for target_id, watch in watches.items()
    }


def true_times(offers: Iterable[Offer], observed: Times, enough: int = ENOUGH) -> dict[Rung, tuple[int, ...]]:
    """What batches of each profiled size take: as observed, where that was often enough.

    Where it was not, the profile is right but for the factor by which the observed sizes of the
    same model, or of all models, differ from theirs.
    """
    offers = list(offers)
    factors: dict[Rung, float] = {}
    for offer in offers:
        for size, samples in offer.latency_ns.items():
            rung = (offer.model, offer.variant, size)
            times = observed.get(rung, ())
            if len(times) >= enough:
                factors[rung] = median(times) / median(samples)
    found: dict[Rung, tuple[int, ...]] = {}
    for offer in offers:
        own = [f for (model, *_), f in factors.items() if model == offer.model]
        factor = median(own or list(factors.values()) or [1.0])
        for size, samples in offer.latency_ns.items():
            rung = (offer.model, offer.variant, size)
            scaled = tuple(max(1, round(sample * factor)) for sample in samples)
            found[rung] = observed[rung] if rung in factors else scaled
    return found


def observed_fleet(path: Path, note: Note = warn, enough: int = ENOUGH) -> Fleet:
    """The targets of a journal, whose batches take what they took.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        enough: As in `ENOUGH`.

    Raises:
        JournalError: It can't be read.
        FleetError: It tells of no target that had a model ready.
    """
    specs = [spec for spec in targets(path, note) if spec.offers]
    if not specs:
        raise FleetError(f"{path} tells of no target that had a model ready; give a --fleet")
    observed = observed_times(read_journal(path, note), specs)
    devices = tuple(
        Device(spec, truth=Truth(times=true_times(spec.offers, observed[spec.id], enough)))
        for spec in specs
    )
    return Fleet("journal", devices, notes=("targets, profiles and times as in the journal",))

"""How long a daemon's batches really took, from its journal: the truth for simulating that box.

A profile is measured on an otherwise idle device. While the box serves, messages travel, other
devices use the same memory, and the scheduler needs a processor too. Batches then take longer, by
varying amounts, and when the machine is slow for a moment, all of its devices are. A fleet made
from a journal gives the scheduler the same profiles that the daemon had, and lets batches take the
time they took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median

from replay.fleet.model import Device, Fleet, FleetError, Truth, way_to
from replay.fleet.world import Tempo
from replay.journal import read_on_one_clock, targets
from replay.journal_files import Note, warn
from scheduler.core.commands import Command, Dispatch
from scheduler.core.events import BatchDone, BatchFailed, Event, Submitted, TargetDown, TargetUp
from scheduler.core.requests import Request, Shapes
from scheduler.core.sizes import step_of
from scheduler.core.target_specs import TargetSpec
from scheduler.journal_format import Gap

ENOUGH = 16
"""Once this many batches of a size were seen, their times are used instead of the profile."""

_REACH_NS = 1_000_000_000
"""A batch tells the pace of its device up to this long before and after its start."""

_AROUND = 8
"""A batch is compared with this many batches before it and after it."""

_NO_PACE = 4.0
"""If batches of a size took so many times longer than in the profile as those of another size did,
that is not the machine's pace. Messages and the scheduler's own time are added to each batch, and
may be fifty times what one of the smallest models takes."""

_ROUNDS = 5
"""Number of iterations, each of which starts from the result of the one before."""

Sizes = Mapping[tuple[str, str], Sequence[tuple[int, float]]]
"""As in `Truth`."""

Rung = tuple[str, str, int]
"""A model, its variant, and a measured batch size."""


@dataclass(slots=True)
class Seen:
    """A batch, as its scheduler saw it.

    Attributes:
        rung: The model, variant and batch size.
        begun_ns: When it began: its message had arrived, and the batches ahead of it had made room.
            While it waits, when its message arrives.
        shapes: The shapes of its items.
        took_ns: Time from `begun_ns` until the scheduler heard of its end. The usual travel time to
            the target is not part of it.
        factor: The factor between the times of its items and of items of the profiled size, where
            the model takes items of any size.
    """

    rung: Rung
    begun_ns: int
    shapes: Shapes = ()
    took_ns: int = 0
    factor: float = 1.0


@dataclass(slots=True)
class _Watch:
    """The state of one target while its journal is read."""

    spec: TargetSpec
    waiting: dict[int, Seen] = field(default_factory=dict)
    running: dict[int, Seen] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    way_free_ns: int = 0

    def rung(self, batch: Dispatch) -> Rung:
        """The rung that a batch counts as."""
        count = len(batch.request_ids)
        for offer in self.spec.offers:
            if (offer.model, offer.variant) == (batch.model, batch.variant):
                count = offer.size_for(count)
        return batch.model, batch.variant, count

    def lands_ns(self, sent_ns: int, carry_ns: int) -> int:
        """When a batch arrives whose bytes take `carry_ns` on the link, after earlier batches."""
        if not self.waiting and not self.running:
            self.way_free_ns = 0  # the link is free, whatever was estimated
        self.way_free_ns = max(sent_ns, self.way_free_ns) + carry_ns
        return self.way_free_ns + self.spec.transfer_ns[0]

    def take(self, run_id: int, run: Seen) -> None:
        self.waiting[run_id] = run
        self._begin(0)

    def end(self, run_id: int, now_ns: int, done: bool) -> None:
        self.waiting.pop(run_id, None)
        run = self.running.pop(run_id, None)
        if run is not None and done:
            run.took_ns = max(1, now_ns - run.begun_ns)
            self.seen.append(run)
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        while self.waiting and len(self.running) < self.spec.width:
            run_id = next(iter(self.waiting))
            run = self.running[run_id] = self.waiting.pop(run_id)
            run.begun_ns = max(run.begun_ns, now_ns)

    def lose_all(self) -> None:
        self.waiting.clear()
        self.running.clear()


class Observation:
    """How long things took, according to a journal.

    Args:
        steps: Events and commands, as `read_journal` yields them.
        specs: The targets.

    Attributes:
        seen: For each target, the batches finished there, in order.
        came_ns: When requests were submitted, in order; once for those submitted together.
        until_ns: When the last event happened.
        sizes: For each target, as in `Truth`.
    """

    def __init__(
        self, steps: Iterable[tuple[int, Event | Command | Gap]], specs: Iterable[TargetSpec]
    ) -> None:
        """Reads all steps."""
        self._watches = {spec.id: _Watch(spec) for spec in specs}
        self._requests: dict[int, Request] = {}
        self._places: dict[int, _Watch] = {}
        self.came_ns: list[int] = []
        self.until_ns = 0
        for at_ns, step in steps:
            self._read(at_ns, step)
            self.until_ns = at_ns
        self.seen = {target_id: watch.seen for target_id, watch in self._watches.items()}
        self.sizes = {
            target_id: _factors(watch.spec, watch.seen)
            for target_id, watch in self._watches.items()
        }

    def _read(self, at_ns: int, step: Event | Command | Gap) -> None:
        match step:
            case Submitted(requests):
                self._requests.update((request.id, request) for request in requests)
                self.came_ns.append(at_ns)
            case Dispatch() if step.target_id in self._watches:
                watch = self._places[step.run_id] = self._watches[step.target_id]
                known = [self._requests[i] for i in step.request_ids if i in self._requests]
                size_bytes = sum(request.size_bytes for request in known)
                rung = watch.rung(step)
                form = watch.spec.form_named(step.model, step.form)
                lands_ns = watch.lands_ns(at_ns, watch.spec.carry_ns(size_bytes, form))
                shapes = known[0].kind.shapes if known else ()
                watch.take(step.run_id, Seen(rung, lands_ns, shapes))
            case BatchDone(run_id) if run_id in self._places:
                self._places.pop(run_id).end(run_id, at_ns, not step.errors)
            case BatchFailed(run_id) if run_id in self._places:
                self._places.pop(run_id).end(run_id, at_ns, False)
            case TargetDown(target_id) | TargetUp(TargetSpec(id=target_id)):
                if target_id in self._watches:
                    self._watches[target_id].lose_all()
            case Gap():
                # What became of the batches in flight is unknown.
                for watch in self._watches.values():
                    watch.lose_all()

    def came(self, from_ns: int, until_ns: int) -> int:
        """How many times requests were submitted within an interval."""
        return bisect_right(self.came_ns, until_ns) - bisect_right(self.came_ns, from_ns)

    def net_ns(self, target_id: str, submit_ns: int = 0) -> dict[Rung, list[int]]:
        """Batch times by rung, less the time that submissions meanwhile took.

        Where a model takes items of any size, times are scaled to the profiled size.

        Args:
            target_id: The target.
            submit_ns: As in `Truth`.
        """
        found: dict[Rung, list[int]] = defaultdict(list)
        for each in self._net(target_id, submit_ns):
            found[each.rung].append(each.took_ns)
        return found

    def _net(self, target_id: str, submit_ns: int) -> Iterator[Seen]:
        for each in self.seen[target_id]:
            came = self.came(each.begun_ns, each.begun_ns + each.took_ns)
            alone_ns = each.took_ns - came * submit_ns
            yield replace(each, took_ns=max(1, round(alone_ns / each.factor)))

    def truth(
        self,
        spec: TargetSpec,
        submit_ns: int = 0,
        enough: int = ENOUGH,
        begin_ns: int | None = None,
    ) -> Truth:
        """The true batch times of a target.

        A size seen fewer than `enough` times gets its profiled times, multiplied by the factor by
        which the seen sizes of the same model, or else of all models, differ from their profiles.
        """
        times = _completed(spec, self.net_ns(spec.id, submit_ns), enough)
        tempo = self._tempo(spec, submit_ns, enough, begin_ns)
        sizes = self.sizes[spec.id]
        return Truth(times=times, tempo=tempo, submit_ns=submit_ns, sizes=sizes)

    def _tempo(
        self, spec: TargetSpec, submit_ns: int, enough: int, begin_ns: int | None
    ) -> Tempo | None:
        """The device's pace over time: at each moment, the pace of the batch begun nearest to it.

        It begins at the first request, and is None further than `_REACH_NS` from every batch.
        """
        first_ns = self.came_ns[0] if self.came_ns else 0
        profiled_ns = {rung: fmean(samples) for rung, samples in _profiled(spec).items()}
        seen = [
            each
            for each in sorted(self._net(spec.id, submit_ns), key=attrgetter("begun_ns"))
            if each.rung in profiled_ns and each.begun_ns >= first_ns
        ]
        if len(seen) < enough:
            return None
        usual_ns = _usual_ns(seen, profiled_ns, enough)
        steps: list[tuple[int, float | None]] = [(0, None)]
        told_ns = [0]
        for before, each, after in zip([None, *seen], seen, [*seen[1:], None], strict=False):
            at_ns, pace = each.begun_ns - first_ns, each.took_ns / usual_ns[each.rung]
            since_ns = at_ns - _REACH_NS
            if before is not None:
                since_ns = max(since_ns, (before.begun_ns - first_ns + at_ns) // 2)
            steps.append((max(0, since_ns), pace))
            told_ns.append(round(usual_ns[each.rung]))
            if after is None or after.begun_ns - each.begun_ns > 2 * _REACH_NS:
                steps.append((at_ns + _REACH_NS, None))
                told_ns.append(0)
        usual = {rung: round(ns) for rung, ns in usual_ns.items()}
        cycle_ns = max(1, self.until_ns - first_ns)
        return Tempo(tuple(steps), usual, cycle_ns, begin_ns, told_ns=tuple(told_ns))

    def pace(self, target_id: str, truth: Truth) -> float:
        """The median ratio of batch times to those in `truth`; 1 if there were no batches.

        A moment in which the machine was slow counts little in a median; such moments differ from
        run to run.
        """
        usual_ns = {rung: median(samples) for rung, samples in truth.times.items()}
        found = self._net(target_id, truth.submit_ns)
        return median([each.took_ns / usual_ns[each.rung] for each in found] or [1.0])


def _factors(spec: TargetSpec, seen: Sequence[Seen]) -> Sizes:
    """How much longer items of each size took than profiled ones; sets each batch's `factor`."""
    sizes: dict[tuple[str, str], Sequence[tuple[int, float]]] = {}
    for offer in spec.offers:
        if not offer.item_shapes:
            continue
        rungs = {(offer.model, offer.variant, size) for size in offer.latency_ns}
        own = [each for each in seen if each.rung in rungs]
        ratios: dict[int, list[float]] = defaultdict(list)
        for each in own:
            profiled_ns = median(offer.latency_ns[each.rung[2]])
            ratios[step_of(offer.elements(each.shapes))].append(each.took_ns / profiled_ns)
        at = step_of(offer.elements(offer.item_shapes))
        level = median(ratios.pop(at, [1.0]))
        known = {at: 1.0, **{step: median(found) / level for step, found in ratios.items()}}
        sizes[offer.model, offer.variant] = sorted(known.items())
        for each in own:
            each.factor = known[step_of(offer.elements(each.shapes))]
    return sizes


def _completed(
    spec: TargetSpec, seen: Mapping[Rung, list[int]], enough: int
) -> dict[Rung, Sequence[int]]:
    """The times of all profiled sizes, from the seen batches or from scaled profiles."""
    profiled = _profiled(spec)
    factors = {
        rung: median(seen[rung]) / median(samples)
        for rung, samples in profiled.items()
        if len(seen.get(rung, ())) >= enough
    }
    found: dict[Rung, Sequence[int]] = {}
    for rung, samples in profiled.items():
        own = [factor for (model, *_), factor in factors.items() if model == rung[0]]
        factor = median(own or list(factors.values()) or [1.0])
        scaled = tuple(max(1, round(sample * factor)) for sample in samples)
        found[rung] = tuple(seen[rung]) if rung in factors else scaled
    return found


def _profiled(spec: TargetSpec) -> dict[Rung, Sequence[int]]:
    return {(o.model, o.variant, n): t for o in spec.offers for n, t in o.latency_ns.items()}


def _first_guess_ns(
    seen: Sequence[Seen], profiled_ns: Mapping[Rung, float], enough: int
) -> dict[Rung, float]:
    found: dict[Rung, list[int]] = defaultdict(list)
    for each in seen:
        found[each.rung].append(each.took_ns)
    often = {rung: median(times) for rung, times in found.items() if len(times) >= enough}
    least = min([ns / profiled_ns[rung] for rung, ns in often.items()], default=1.0)
    added = {rung: ns for rung, ns in often.items() if ns > _NO_PACE * least * profiled_ns[rung]}
    return {**profiled_ns, **added}


def _usual_ns(
    seen: Sequence[Seen], profiled_ns: Mapping[Rung, float], enough: int
) -> dict[Rung, float]:
    """What batches of each size take at the median pace.

    A size that happened to run while the machine was slow must not count as slow. So each batch is
    compared with the pace of the batches around it, which in the first round comes from the
    profile, or from what was seen of a size that is `_NO_PACE`.
    """
    usual_ns = _first_guess_ns(seen, profiled_ns, enough)
    for _ in range(_ROUNDS):
        paces = [each.took_ns / usual_ns[each.rung] for each in seen]
        level = median(paces)
        by_rung: dict[Rung, list[float]] = defaultdict(list)
        for place, (each, pace) in enumerate(zip(seen, paces, strict=True)):
            around = paces[max(0, place - _AROUND) : place + _AROUND + 1]
            by_rung[each.rung].append(pace / median(around))
        for rung in usual_ns:
            known = by_rung.get(rung, ())
            usual_ns[rung] *= level * (median(known) if len(known) >= enough else 1.0)
    return usual_ns


def observed_fleet(path: Path, note: Note = warn, begin_ns: int | None = None) -> Fleet:
    """The targets of a journal, with batches that take the time they took there.

    Damaged parts of the journal are skipped with a note, along with the batches that were in flight
    when the damage begins.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        begin_ns: How long after the journal's first request the played requests begin; None if the
            requests do not come from the journal at its own speed.

    Raises:
        JournalError: The journal can't be read.
        FleetError: No target in it had a model ready.
    """
    specs = [spec for spec in targets(path, note, whole=False) if spec.offers]
    if not specs:
        raise FleetError(f"{path} names no target that had a model ready; give a --fleet")
    observation = Observation(read_on_one_clock(path, note, whole=False), specs)
    devices = tuple(
        Device(spec, way_to(spec), observation.truth(spec, begin_ns=begin_ns)) for spec in specs
    )
    return Fleet("journal", devices, notes=("targets, profiles and times as in the journal",))

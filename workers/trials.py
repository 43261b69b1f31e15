"""Try the runtimes on a variant: load, compare, measure, keep the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import xxhash

from workers.agreement import batch_fault, disagreement, tolerance_for
from workers.batches import ItemRunner
from workers.choice import Choice, RuntimeProblem, best_runtime
from workers.crash_guard import CrashGuard
from workers.fingerprint import fingerprint, fingerprint_id
from workers.model import Model, Tolerance, Variant
from workers.profile_store import Profile, ProfileStore
from workers.profiling import Effort, batch_ladder, measure_ladder
from workers.runtimes.base import DeviceSpec, ModelLoadError, Runtime, Session, one_line
from workers.sampling import sample_items
from workers.stacking import stack_items

Answers = list[dict[str, npt.NDArray[Any]]]
Note = Callable[[int, str], None]
"""Told how many runtimes are through with a variant, and what is happening."""

# Enough for a batch not to be one item many times over, few enough to hold big inputs.
_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class _Case:
    """One variant, and how its answers are judged."""

    model: Model
    variant: Variant

    @property
    def label(self) -> str:
        return f"{self.model.name}/{self.variant.name}"

    @property
    def tolerance(self) -> Tolerance:
        return tolerance_for(self.model, self.variant)

    def key(self, max_batch: int) -> str:
        """The variant's digest, with all else that its measurement depends on."""
        conditions = {
            "precision": self.variant.precision,
            "max_batch": min(self.model.max_batch, max_batch),
            "tolerance": asdict(self.tolerance),
            "shapes": dict(sorted(self.model.profile_shapes.items())),
        }
        text = json.dumps(conditions, sort_keys=True)
        return f"{self.variant.digest}-{xxhash.xxh3_64(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Tried:
    session: Session
    answers: Answers
    profile: Profile


class RuntimeTrials:
    """Tries the runtimes of one device."""

    def __init__(
        self,
        device: DeviceSpec,
        runtimes: Sequence[Runtime],
        store: ProfileStore,
        guard: CrashGuard,
        cache_dir: Path,
        max_batch: int,
        problems: list[RuntimeProblem],
        effort: Effort | None = None,
    ) -> None:
        """Try runtimes on a device.

        Args:
            device: The device.
            runtimes: Those that can be used on it, the trusted one first.
            store: Where profiles are kept.
            guard: Knows what the process died of before.
            cache_dir: An existing folder for what runtimes compile.
            max_batch: The device's own limit on batches.
            problems: Gets what goes wrong; the other runtimes and variants go on.
            effort: How much time to spend on a profile.
        """
        self._problems = problems
        self._device = device
        self._runtimes = runtimes
        self._store = store
        self._guard = guard
        self._cache_dir = cache_dir
        self._max_batch = max_batch
        self._effort = effort
        self._fingerprints = {r.name: fingerprint(device, r) for r in runtimes}

    def candidates(self, model: Model, variant: Variant) -> list[Runtime]:
        """The runtimes to try on a variant."""
        return [
            runtime
            for runtime in self._runtimes
            if variant.path.suffix in runtime.suffixes
            # An emulated device stands for any hardware, whatever library a model asks for.
            and (not model.runtimes or runtime.name in (*model.runtimes, "emulated"))
        ]

    def choose(self, model: Model, variant: Variant, note: Note) -> Choice | None:
        """Find, load and profile the best runtime for a variant.

        With a stored profile of every candidate only the winner is loaded. Otherwise all are,
        their answers are compared with the first one's, and what is not stored is measured.

        Returns:
            The winner, or None when no runtime can serve the variant; the problems say why.
        """
        case = _Case(model, variant)
        candidates = self.candidates(model, variant)
        if not candidates:
            self._report(case, "*", self._why_none(case))
            return None
        known = self._stored(candidates, case)
        winner = best_runtime(known) if len(known) == len(candidates) else None
        if winner is not None:
            session = self._load(_named(candidates, winner), case)
            if session is not None:
                note(len(candidates), f"{case.label}: {winner}, as measured before")
                return Choice(winner, session, known[winner].latency_ns)
        return self._try_all(candidates, case, known, note)

    def _try_all(
        self,
        candidates: list[Runtime],
        case: _Case,
        known: Mapping[str, Profile],
        note: Note,
    ) -> Choice | None:
        tried: dict[str, _Tried] = {}
        reference: Answers | None = None
        for done, runtime in enumerate(candidates):
            label = f"{case.label}: {runtime.name}"
            note(done, f"{label}, loading")
            tell = partial(_tell_batch, note, done, label)
            stored = known.get(runtime.name)
            outcome = self._try(runtime, case, reference, stored, tell)
            if outcome is not None:
                reference = reference or outcome.answers
                tried[runtime.name] = outcome
                self._keep(runtime, case, outcome.profile)
        note(len(candidates), f"{case.label}: done")
        return _keep_best(tried)

    def _try(
        self,
        runtime: Runtime,
        case: _Case,
        reference: Answers | None,
        stored: Profile | None,
        tell: Callable[[int], None],
    ) -> _Tried | None:
        if self._is_deadly(runtime, case):
            return None
        # Loading and judging are one attempt, so that the first does not clear the second.
        with self._guard.watch(self._attempt(runtime, case)):
            session = self._open(runtime, case)
            if session is None:
                return None
            try:
                return self._judge(runtime, session, case, reference, stored, tell)
            except Exception as error:  # a library's fault with one model must not lose the others
                session.close()
                self._report(case, runtime.name, f"failed on random inputs: {_say(error)}")
                return None

    def _judge(
        self,
        runtime: Runtime,
        session: Session,
        case: _Case,
        reference: Answers | None,
        stored: Profile | None,
        tell: Callable[[int], None],
    ) -> _Tried:
        runner = ItemRunner(session, case.model.signature.batched)
        items = sample_items(case.model, _SAMPLES)
        answers = [runner.run_batch([item])[0] for item in items]
        for found, expected in zip(answers, reference or answers, strict=True):
            reason = disagreement(found, expected, case.tolerance)
            if reason is not None:
                return _Tried(session, answers, Profile({}, rejected=reason))
        if stored is not None and stored.rejected is None:
            return _Tried(session, answers, stored)
        limit = self._batch_limit(runtime, session, case)
        batches = {n: [items[i % _SAMPLES] for i in range(n)] for n in batch_ladder(limit)}
        ladder = measure_ladder(
            lambda n: runner.run_batch(batches[n]), limit, effort=self._effort, on_batch=tell
        )
        return _Tried(session, answers, Profile(ladder))

    def _batch_limit(self, runtime: Runtime, session: Session, case: _Case) -> int:
        """The largest batch to offer; 1 if a batch changes its items' answers."""
        limit = min(session.max_batch, case.model.max_batch, self._max_batch)
        if limit == 1 or not case.model.signature.batched:
            return 1
        pair = sample_items(case.model, 2)
        alone = [stack_items([item]) for item in pair]
        fault = batch_fault(session.run, stack_items(pair), alone, case.tolerance)
        if fault is None:
            return limit
        self._report(case, runtime.name, f"served one item at a time: {fault}")
        return 1

    def _load(self, runtime: Runtime, case: _Case) -> Session | None:
        if self._is_deadly(runtime, case):
            return None
        with self._guard.watch(self._attempt(runtime, case)):
            return self._open(runtime, case)

    def _open(self, runtime: Runtime, case: _Case) -> Session | None:
        try:
            return runtime.load(case.model, case.variant, self._device, self._cache_dir)
        except ModelLoadError as error:
            self._report(case, runtime.name, str(error))
        except Exception as error:  # as in _try
            self._report(case, runtime.name, f"failed to load: {_say(error)}")
        return None

    def _is_deadly(self, runtime: Runtime, case: _Case) -> bool:
        verdict = self._guard.verdict(self._attempt(runtime, case))
        if verdict is not None:
            self._report(case, runtime.name, verdict)
        return verdict is not None

    def _attempt(self, runtime: Runtime, case: _Case) -> str:
        of = fingerprint_id(self._fingerprints[runtime.name])
        return f"{of}-{case.key(self._max_batch)}"

    def _stored(self, candidates: list[Runtime], case: _Case) -> dict[str, Profile]:
        key = case.key(self._max_batch)
        found = {r.name: self._store.get(self._fingerprints[r.name], key) for r in candidates}
        return {name: profile for name, profile in found.items() if profile is not None}

    def _keep(self, runtime: Runtime, case: _Case, profile: Profile) -> None:
        if profile.rejected is not None:
            self._report(case, runtime.name, f"rejected: {profile.rejected}")
        key, of = case.key(self._max_batch), self._fingerprints[runtime.name]
        try:
            self._store.put(of, key, case.model.name, case.variant.name, profile)
        except OSError as error:
            self._report(case, runtime.name, f"its profile could not be stored: {error}")

    def _why_none(self, case: _Case) -> str:
        usable = ", ".join(runtime.name for runtime in self._runtimes) or "no runtime"
        allowed = ", ".join(case.model.runtimes)
        wanted = f", model.yaml allows {allowed}" if allowed else ""
        return f"no runtime for {case.variant.path.suffix}: {self._device.id} has {usable}{wanted}"

    def _report(self, case: _Case, runtime: str, reason: str) -> None:
        problem = RuntimeProblem(case.model.name, case.variant.name, runtime, reason)
        self._problems.append(problem)


def _keep_best(tried: Mapping[str, _Tried]) -> Choice | None:
    winner = best_runtime({name: outcome.profile for name, outcome in tried.items()})
    for name, outcome in tried.items():
        if name != winner:
            outcome.session.close()
    if winner is None:
        return None
    return Choice(winner, tried[winner].session, tried[winner].profile.latency_ns)


def _named(runtimes: Sequence[Runtime], name: str) -> Runtime:
    return next(runtime for runtime in runtimes if runtime.name == name)


def _tell_batch(note: Note, done: int, label: str, batch: int) -> None:
    note(done, f"{label}, batch {batch}")


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"

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
from workers.fingerprint import fingerprint
from workers.model import Model, Variant
from workers.profile_store import Profile, ProfileStore
from workers.profiling import Effort, batch_ladder, measure_ladder
from workers.runtimes.base import DeviceSpec, ModelLoadError, Runtime, Session, one_line
from workers.sampling import sample_items, stack_items

Answers = list[dict[str, npt.NDArray[Any]]]
Note = Callable[[int, str], None]
"""Told how many runtimes are through with a variant, and what is happening."""

# Enough for a batch not to be one item many times over, few enough to hold big inputs.
_SAMPLES = 4


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
            cache_dir: An existing folder for what runtimes compile.
            max_batch: The device's own limit on batches.
            problems: Gets what goes wrong; the other runtimes and variants go on.
            effort: How much time to spend on a profile.
        """
        self._problems = problems
        self._device = device
        self._runtimes = runtimes
        self._store = store
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
        candidates = self.candidates(model, variant)
        if not candidates:
            self._report(model, variant, "*", self._why_none(model, variant))
            return None
        known = self._stored(candidates, model, variant)
        winner = best_runtime(known) if len(known) == len(candidates) else None
        if winner is not None:
            session = self._load(_named(candidates, winner), model, variant)
            if session is not None:
                note(len(candidates), f"{model.name}/{variant.name}: {winner}, as measured before")
                return Choice(winner, session, known[winner].latency_ns)
        return self._try_all(candidates, model, variant, known, note)

    def _try_all(
        self,
        candidates: list[Runtime],
        model: Model,
        variant: Variant,
        known: Mapping[str, Profile],
        note: Note,
    ) -> Choice | None:
        tried: dict[str, _Tried] = {}
        reference: Answers | None = None
        for done, runtime in enumerate(candidates):
            label = f"{model.name}/{variant.name}: {runtime.name}"
            note(done, f"{label}, loading")
            session = self._load(runtime, model, variant)
            if session is None:
                continue
            tell = partial(_tell_batch, note, done, label)
            stored = known.get(runtime.name)
            try:
                outcome = self._try(runtime, session, model, variant, reference, stored, tell)
            except Exception as error:  # as in _load
                session.close()
                self._report(
                    model, variant, runtime.name, f"failed on random inputs: {_say(error)}"
                )
                continue
            reference = reference or outcome.answers
            tried[runtime.name] = outcome
            self._keep(runtime, model, variant, outcome.profile)
        note(len(candidates), f"{model.name}/{variant.name}: done")
        return _keep_best(tried)

    def _try(
        self,
        runtime: Runtime,
        session: Session,
        model: Model,
        variant: Variant,
        reference: Answers | None,
        stored: Profile | None,
        tell: Callable[[int], None],
    ) -> _Tried:
        runner = ItemRunner(session, model.signature.batched)
        items = sample_items(model, _SAMPLES)
        answers = [runner.run_batch([item])[0] for item in items]
        if reference is not None:
            tolerance = tolerance_for(model, variant)
            for found, expected in zip(answers, reference, strict=True):
                reason = disagreement(found, expected, tolerance)
                if reason is not None:
                    return _Tried(session, answers, Profile({}, rejected=reason))
        if stored is not None and stored.rejected is None:
            return _Tried(session, answers, stored)
        limit = self._batch_limit(runtime, session, model, variant)
        batches = {n: [items[i % _SAMPLES] for i in range(n)] for n in batch_ladder(limit)}
        ladder = measure_ladder(
            lambda n: runner.run_batch(batches[n]), limit, effort=self._effort, on_batch=tell
        )
        return _Tried(session, answers, Profile(ladder))

    def _batch_limit(
        self, runtime: Runtime, session: Session, model: Model, variant: Variant
    ) -> int:
        """The largest batch to offer; 1 if a batch changes its items' answers."""
        limit = min(session.max_batch, model.max_batch, self._max_batch)
        if limit == 1 or not model.signature.batched:
            return 1
        pair = sample_items(model, 2)
        tolerance = tolerance_for(model, variant)
        alone = [stack_items([item]) for item in pair]
        fault = batch_fault(session.run, stack_items(pair), alone, tolerance)
        if fault is None:
            return limit
        reason = f"served one item at a time: {fault}"
        self._report(model, variant, runtime.name, reason)
        return 1

    def _load(self, runtime: Runtime, model: Model, variant: Variant) -> Session | None:
        try:
            return runtime.load(model, variant, self._device, self._cache_dir)
        except ModelLoadError as error:
            self._report(model, variant, runtime.name, str(error))
        except Exception as error:  # a library's fault with one model must not lose the others
            self._report(model, variant, runtime.name, f"failed to load: {_say(error)}")
        return None

    def _stored(
        self, candidates: list[Runtime], model: Model, variant: Variant
    ) -> dict[str, Profile]:
        key = self._key(model, variant)
        found = {r.name: self._store.get(self._fingerprints[r.name], key) for r in candidates}
        return {name: profile for name, profile in found.items() if profile is not None}

    def _keep(self, runtime: Runtime, model: Model, variant: Variant, profile: Profile) -> None:
        if profile.rejected is not None:
            self._report(model, variant, runtime.name, f"rejected: {profile.rejected}")
        key, of = self._key(model, variant), self._fingerprints[runtime.name]
        self._store.put(of, key, model.name, variant.name, profile)

    def _key(self, model: Model, variant: Variant) -> str:
        """The variant's digest, with all else that its measurement depends on."""
        conditions = {
            "precision": variant.precision,
            "max_batch": min(model.max_batch, self._max_batch),
            "tolerance": asdict(tolerance_for(model, variant)),
            "shapes": dict(sorted(model.profile_shapes.items())),
        }
        text = json.dumps(conditions, sort_keys=True)
        return f"{variant.digest}-{xxhash.xxh3_64(text.encode()).hexdigest()}"

    def _why_none(self, model: Model, variant: Variant) -> str:
        usable = ", ".join(runtime.name for runtime in self._runtimes) or "no runtime"
        wanted = f", model.yaml allows {', '.join(model.runtimes)}" if model.runtimes else ""
        return f"no runtime for {variant.path.suffix}: {self._device.id} has {usable}{wanted}"

    def _report(self, model: Model, variant: Variant, runtime: str, reason: str) -> None:
        self._problems.append(RuntimeProblem(model.name, variant.name, runtime, reason))


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

"""Try runtimes on a variant: load, compare, measure, and keep the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from workers.case import Case
from workers.choice import Choice, RuntimeProblem, best_runtime, has_lost
from workers.fingerprint import Fingerprint
from workers.judging import Answers, Judge, batch_limit
from workers.loading import Loader, Surroundings
from workers.model import Model, Variant
from workers.profile_store import Profile
from workers.reference import reference_answers, reference_runtimes
from workers.runtimes.base import DeviceSpec, Runtime, Session, spell
from workers.runtimes.emulated import Emulated

Note = Callable[[int, str], None]
"""Called with the number of runtimes done with a variant, and what is happening."""

Profiles = Mapping[str, Profile]

_SHORTAGES = (MemoryError, OSError)
"""Raised by items too big for memory or a failing disk; other variants must go on."""

_STATEFUL = (
    "served one item at a time: it keeps values between runs, and each run begins with the "
    "initial ones; if its items may share a batch, say `stateless: true` in model.yaml"
)


_FIXED = (
    "served in batches of at most {0}: the file fixes its batch dimension at 1; export it with a "
    "free one, or say `max_batch: {0}` in model.yaml"
)


class _Tried(NamedTuple):
    session: Session
    answers: Answers
    profile: Profile


class RuntimeTrials:
    """Tries the runtimes of one device."""

    def __init__(
        self,
        device: DeviceSpec,
        runtimes: Sequence[Runtime],
        around: Surroundings,
        problems: list[RuntimeProblem],
    ) -> None:
        """Try runtimes on a device.

        Args:
            device: The device.
            runtimes: The runtimes usable on it, the most trusted first.
            around: What the device's trials share.
            problems: Collects failures; the other runtimes and variants go on.
        """
        self._loader = Loader(device, runtimes, around, problems)
        self._device = device
        self._runtimes = {runtime.name: runtime for runtime in runtimes}
        self._around = around

    def look_at_device(self) -> bool:
        """Update the device's state, and return whether it changed since the last call.

        Profiles measured in another state are not used, so `choose` then measures again.
        """
        return self._loader.look_at_device()

    def remove_unused(self, models: Iterable[Model]) -> None:
        """Remove what is compiled of other files than those of these models."""
        self._loader.remove_unused(Case(model, v) for model in models for v in model.variants)

    def candidates(self, model: Model, variant: Variant) -> list[Runtime]:
        """The runtimes to try on a variant."""
        if not self._device.may_serve(model.name):
            return []
        return [
            runtime
            for runtime in self._runtimes.values()
            if variant.path.suffix in runtime.suffixes
            # An emulated device stands in for any hardware, whatever runtimes a model allows.
            and (not model.runtimes or runtime.name in (*model.runtimes, Emulated.name))
        ]

    def unbuilt(self, model: Model, variant: Variant) -> list[Runtime]:
        """The candidates that must first compile the variant, which takes minutes."""
        case = Case(model, variant)
        return [r for r in self.candidates(model, variant) if self._loader.must_build(r, case)]

    def choose(self, model: Model, variant: Variant, note: Note) -> Choice | None:
        """Find, load and profile the best runtime for a variant that needs no build.

        If every candidate has a stored profile, only the winner is loaded. Otherwise all are
        loaded, their answers are compared with the reference's, and those without a stored profile
        are measured.

        Returns:
            The winner, or None if no runtime can serve the variant yet; the problems say why.
        """
        case = Case(model, variant)
        try:
            choice = self._choose(case, note)
        except _SHORTAGES as error:
            self._loader.report(case, "*", f"could not be tried: {spell(error)}")
            return None
        wanted = min(model.max_batch, self._around.max_batch)
        if choice is not None and variant.fixed_batch and choice.session.max_batch < wanted:
            self._loader.report(case, choice.runtime, _FIXED.format(choice.session.max_batch))
        return choice

    def _choose(self, case: Case, note: Note) -> Choice | None:
        candidates = self.candidates(case.model, case.variant)
        if not candidates:
            if self._device.may_serve(case.model.name):
                self._loader.report(case, "*", self._why_none(case))
            return None
        if self._loader.is_exchanged(case) or self._loader.lacks_room(case):
            return None
        ready = [r for r in candidates if not self._loader.must_build(r, case)]
        if not ready:
            return None
        known = self._stored(ready, case)
        winner = best_runtime(known) if len(known) == len(ready) else None
        if winner is not None:
            choice = self._as_before(self._runtimes[winner], case, known[winner])
            if choice is not None:
                note(len(candidates), f"{case.label}: {winner}, as measured before")
                return choice
        complete = {name: profile for name, profile in known.items() if not profile.partial}
        return self._try_all(ready, case, complete, note)

    def challenge(
        self, model: Model, variant: Variant, runtime: Runtime, incumbent: Choice | None, note: Note
    ) -> Choice | None:
        """Build a variant with a runtime, and try whether it serves better than the incumbent.

        Returns:
            The new choice, or None if the incumbent stays.
        """
        case = Case(model, variant)
        try:
            return self._challenge(case, runtime, incumbent, note)
        except _SHORTAGES as error:
            self._loader.report(case, runtime.name, f"could not be tried: {spell(error)}")
            return None

    def _challenge(
        self, case: Case, runtime: Runtime, incumbent: Choice | None, note: Note
    ) -> Choice | None:
        if self._loader.is_exchanged(case, runtime.name):
            return None
        if not self._loader.build(
            runtime, case, lambda text: note(0, f"{case.label}: {runtime.name}, {text}")
        ):
            return None
        rivals = {} if incumbent is None else {incumbent.runtime: incumbent.profile}
        judge, stored = self._judge(case), self._stored([runtime], case).get(runtime.name)
        reference = self._reference(case, judge)
        of = self._loader.fingerprints[runtime.name]
        tried = self._try(runtime, case, judge, reference, stored, rivals, partial(note, 0))
        if tried is None:
            return None
        self._keep(runtime, case, tried.profile, of)
        if best_runtime({**rivals, runtime.name: tried.profile}) != runtime.name:
            tried.session.close()
            return None
        return Choice(runtime.name, tried.session, tried.profile)

    def stored(self, model: Model, variant: Variant) -> dict[str, Profile]:
        """The candidates' stored profiles in the device's current state, by runtime name."""
        return self._stored(self.candidates(model, variant), Case(model, variant))

    def keep(self, model: Model, variant: Variant, choice: Choice) -> None:
        """Store a choice's profile, which was measured again since the choice was made."""
        of = self._loader.fingerprints[choice.runtime]
        self._keep(self._runtimes[choice.runtime], Case(model, variant), choice.profile, of)

    def reload(self, model: Model, variant: Variant, runtime: str) -> Session | None:
        """Load a chosen runtime again; on failure, report a problem and return None."""
        case = Case(model, variant)
        if self._loader.is_exchanged(case, runtime):
            return None
        return self._loader.load(self._runtimes[runtime], case)

    def _as_before(self, runtime: Runtime, case: Case, profile: Profile) -> Choice | None:
        if self._loader.is_deadly(runtime, case):
            return None
        judge = self._judge(case)
        with self._around.guard.watch(self._loader.attempt(runtime, case)):
            judge.draw()
            session = self._loader.open(runtime, case)
            if session is None:
                return None
            try:
                judge.warm_up(session, list(profile.latency_ns))
            except Exception as error:  # a library's failure with one model must not lose others
                session.close()
                self._loader.report(case, runtime.name, f"failed on random inputs: {spell(error)}")
                return None
        self._tell_limit(runtime, case, profile)
        return Choice(runtime.name, session, profile)

    def _try_all(
        self, candidates: list[Runtime], case: Case, known: Profiles, note: Note
    ) -> Choice | None:
        tried: dict[str, _Tried] = {}
        judge = self._judge(case)
        reference = self._reference(case, judge)
        before = dict(self._loader.fingerprints)
        for done, runtime in enumerate(candidates):
            rivals = {name: outcome.profile for name, outcome in tried.items()}
            stored = known.get(runtime.name)
            tell = partial(note, done)
            outcome = self._try(runtime, case, judge, reference, stored, rivals, tell)
            if outcome is not None:
                reference = reference or outcome.answers
                tried[runtime.name] = outcome
                self._keep(runtime, case, outcome.profile, before[runtime.name])
        note(len(candidates), f"{case.label}: done")
        return _keep_best(tried)

    def _try(
        self,
        runtime: Runtime,
        case: Case,
        judge: Judge,
        reference: Answers | None,
        stored: Profile | None,
        rivals: Profiles,
        tell: Callable[[str], None],
    ) -> _Tried | None:
        if self._loader.is_deadly(runtime, case):
            return None
        tell(f"{case.label}: {runtime.name}, loading")
        # Loading and judging are one attempt, so that a load that succeeds does not clear the
        # record.
        with self._around.guard.watch(self._loader.attempt(runtime, case)):
            judge.draw()
            began_ns = time.monotonic_ns()
            session = self._loader.open(runtime, case)
            if session is None:
                return None
            load_ns = time.monotonic_ns() - began_ns
            tell(f"{case.label}: {runtime.name}, first answers")
            try:
                answers = judge.answers(session)
                rejected = judge.fault(answers, reference) if reference else None
                rejected = rejected or judge.padding_fault(session)
                if rejected is not None:
                    return _Tried(session, answers, Profile({}, rejected=rejected))
                if stored is None or stored.rejected is not None:
                    stored = self._measure(runtime, session, case, judge, answers, rivals, tell)
                    if case.model.pad:  # only the longest items were measured
                        judge.warm_up(session, list(stored.latency_ns))
                return _Tried(session, answers, replace(stored, load_ns=load_ns))
            except Exception as error:  # as in _as_before
                session.close()
                self._loader.report(case, runtime.name, f"failed on random inputs: {spell(error)}")
                return None

    def _measure(
        self,
        runtime: Runtime,
        session: Session,
        case: Case,
        judge: Judge,
        answers: Answers,
        rivals: Profiles,
        tell: Callable[[str], None],
    ) -> Profile:
        limit = batch_limit(session, case.model, self._around.max_batch)
        refused = case.variant.stateful and not case.model.stateless and limit > 1
        verdict = judge.measure(
            session,
            answers,
            1 if refused else limit,
            tell=lambda batch: tell(f"{case.label}: {runtime.name}, batch {batch}"),
            has_lost=lambda ladder: has_lost(ladder, rivals.values()),
        )
        limited = _STATEFUL if refused else verdict.limited
        return Profile(
            verdict.latency_ns,
            limited=limited,
            partial=verdict.partial,
            energy_uj=verdict.energy_uj,
        )

    def _judge(self, case: Case) -> Judge:
        around = self._around
        return Judge(case.model, case.tolerance, around.effort, around.joules)

    def _reference(self, case: Case, judge: Judge) -> Answers | None:
        """The CPU's answers, or None if the first runtime that answers becomes the reference."""
        if not reference_runtimes(self._device):
            return None
        report = partial(self._loader.report, case)
        folder = self._around.cache.folder(
            f"{self._device.file_name}-reference",
            {"case": case.key(self._around.max_batch)},
        )
        self._around.cache.check(folder)
        if self._loader.is_deadly(None, case):
            return None
        with self._around.guard.watch(self._loader.attempt(None, case)):
            items, unpadded = judge.draw(), judge.unpadded()
            answers = reference_answers(
                case.model, case.variant, [*items, *unpadded], self._device, folder, report
            )
        self._around.cache.seal(folder)
        if answers is None:
            report("*", "no CPU runtime answers it, so the first runtime's answers are trusted")
            return None
        judge.expect(answers[len(items) :])
        return answers[: len(items)]

    def _stored(self, candidates: Sequence[Runtime], case: Case) -> dict[str, Profile]:
        store, of = self._around.store, self._loader.fingerprints
        found = {r.name: store.get(of[r.name], self._key(r, case)) for r in candidates}
        return {name: profile for name, profile in found.items() if profile is not None}

    def _keep(self, runtime: Runtime, case: Case, profile: Profile, of: Fingerprint) -> None:
        """Report a profile's problems, and store it if the device's state has not changed since."""
        if profile.rejected is not None:
            self._loader.report(case, runtime.name, f"rejected: {profile.rejected}")
        self._tell_limit(runtime, case, profile)
        if of != self._loader.fingerprints[runtime.name]:
            return  # `choose` is due again, and must not find a profile of mixed states
        key = self._key(runtime, case)
        try:
            self._around.store.put(of, key, case.model.name, case.variant.name, profile)
        except OSError as error:
            self._loader.report(case, runtime.name, f"its profile could not be stored: {error}")

    def _key(self, runtime: Runtime, case: Case) -> str:
        """The key of a profile; emulated latencies depend on the model's name, not on its files."""
        key = case.key(self._around.max_batch)
        return f"{key}-{case.model.name}" if runtime.name == Emulated.name else key

    def _tell_limit(self, runtime: Runtime, case: Case, profile: Profile) -> None:
        if profile.limited is not None:
            self._loader.report(case, runtime.name, profile.limited)

    def _why_none(self, case: Case) -> str:
        usable = ", ".join(self._runtimes) or "no runtime"
        allowed = ", ".join(case.model.runtimes)
        wanted = f", model.yaml allows {allowed}" if allowed else ""
        return f"no runtime for {case.variant.path.suffix}: {self._device.id} has {usable}{wanted}"


def _keep_best(tried: Mapping[str, _Tried]) -> Choice | None:
    winner = best_runtime({name: outcome.profile for name, outcome in tried.items()})
    for name, outcome in tried.items():
        if name != winner:
            outcome.session.close()
    if winner is None:
        return None
    return Choice(winner, tried[winner].session, tried[winner].profile)

"""Owns one device: decides which runtime serves each variant, and runs batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from scheduler.core.offers import Offer
from workers.changes import Changes, still_served
from workers.choice import RuntimeProblem
from workers.compiled_cache import CompiledCache
from workers.crash_guard import ATTEMPTS, CrashGuard
from workers.device_options import expose_gpu
from workers.device_watch import DeviceWatch
from workers.loading import Surroundings
from workers.lost_device import LostDevice, print_end
from workers.measuring_again import MeasuringAgain
from workers.model import Model, Problem, Variant
from workers.preparing import Preparation, Prepared, Progress, ignore_progress
from workers.profile_store import Profile, ProfileStore
from workers.profiling import Effort
from workers.repository import load_repository
from workers.residency import Key
from workers.resources import limit_process, pin_thread
from workers.runtimes.base import DeviceSpec, RunError, Session
from workers.runtimes.emulated import check_models
from workers.sampling import sample_items
from workers.served_variants import ServedVariants
from workers.signatures import difference
from workers.spare_memory import SpareMemory
from workers.stuck import StuckWatch
from workers.telemetry import probe_for
from workers.tensors import Item
from workers.trials import RuntimeTrials
from workers.usable_runtimes import usable_runtimes


def ignore_offer(offer: Offer) -> None:
    """A `tell_offer` for callers that do not care when a variant leaves memory."""


_AGAIN = "its files have changed again, and are not served yet"
_OTHER_ORDER = "its inputs or outputs are in another order now"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one runtime with one variant.

    Attributes:
        model: The model's name.
        variant: The variant's name.
        runtime: The runtime's name.
        profile: What was measured.
        chosen: Whether it serves the variant.
    """

    model: str
    variant: str
    runtime: str
    profile: Profile
    chosen: bool


class DeviceHost:
    """The only user of a device, in its own process.

    `run` may be called while `prepare` runs, each from one thread. It serves the variants offered
    so far, and disturbs what is being measured.

    Attributes:
        repository: The models of the repository, and its problems.
        problems: Problems of runtimes on this device so far.
        tell_offer: Called with a variant's offer when it leaves memory or returns to it; the
            latencies then include its loading time, or no longer do.
        tell_end: Called with the reason before the process ends because its device is lost to it.
        contention: By the id of another device, the factor by which runs take longer here while
            that one is busy.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        repository_root: Path,
        state_dir: Path,
        max_batch: int,
        effort: Effort,
        *,
        system_root: Path = Path("/"),
    ) -> None:
        """Pin this thread to the device's cores, read the repository and find the runtimes.

        Args:
            spec: The device.
            repository_root: The model repository.
            state_dir: Folder where profiles and compiled models are kept between starts.
            max_batch: The device's own largest batch size, at least 1.
            effort: How much time to spend on a profile.
            system_root: Where `/proc` and `/sys` are found.

        Raises:
            DeviceError: The device's runtimes or cores are not available, or its options name a
                model that the repository lacks.
            RepositoryError: The repository's folder cannot be read.
        """
        self.spec = spec
        self.contention: dict[str, float] = {}
        self.tell_offer: Callable[[Offer], None] = ignore_offer
        self.tell_end: Callable[[str], None] = print_end
        self._thread = threading.local()
        # First, because threads that runtimes start inherit the pinning.
        self._pin_thread()
        self._limits = limit_process(spec, system_root)
        expose_gpu(spec)
        self._runtimes, self.problems = usable_runtimes(spec)
        self._changes = Changes(repository_root)
        self.repository = load_repository(repository_root)
        check_models(spec, self.repository.names)
        self._watch = DeviceWatch(probe_for(spec, system_root))
        self._stuck = StuckWatch(spec.limits.stuck_after_s)
        self._prepared_in = self._watch.state
        around = self._surroundings(state_dir, max_batch, effort, system_root)
        self._trials = RuntimeTrials(spec, self._runtimes, around, self.problems)
        # What is compiled of them stays, in case somebody goes back to them.
        self._replaced: dict[str, Model] = {}
        self._served = ServedVariants(
            spec.limits.model_bytes,
            self._reload,
            lambda offer: self.tell_offer(offer),
            self._stuck,
        )
        self._again = MeasuringAgain(self._served, self._samples, effort)
        self._spare = SpareMemory(self._served, self._samples, lambda: self._again.idle_s)

    def prepare(self, progress: Progress = ignore_progress) -> Iterator[Offer]:
        """Prepare every variant, and yield its offer as soon as it is ready.

        What was measured before comes first, the fastest first, since each runs to warm up.
        Runtimes that compile for minutes are tried after all others, and may then offer a variant a
        second time. Variants that cannot be served are left out and listed in `problems`. Called
        again, it measures only what has changed.
        """
        self._pin_thread()
        self._prepared_in = self._watch.state
        # Problems of models are found again; those of the whole device are kept, without repeats.
        self.problems[:] = dict.fromkeys(p for p in self.problems if p.model == "*")
        models = sorted(self.repository.models.values(), key=self._known_ns)
        work = Preparation(self._trials, models, progress)
        for model in models:
            for variant in model.variants:
                choice = work.choose(model, variant)
                if choice is not None:
                    yield self._served.serve(model, variant, choice)
        for model, variant, better in work.challenges():
            if better is not None:
                yield self._served.serve(model, variant, better)
        self._trials.remove_unused([*models, *self._replaced.values()])

    def prepare_changes(self, progress: Progress = ignore_progress) -> Iterator[Prepared]:
        """Prepare the models that were added to the repository, or replaced in it.

        Each is yielded as soon as all of its variants are ready, and once more for each variant for
        which a runtime that compiles for minutes is better. Pass it to `adopt` before going on;
        until then, what is served stays as it was. A model of which nothing can be served does not
        replace one that is served, and neither does one with other inputs or outputs, which would
        fail the requests that are waiting, nor one whose files have changed again meanwhile, as
        their variants may not belong together; `repository.problems` then says so.
        """
        self._pin_thread()
        news = self._changes.read(self.repository)
        self.repository = replace(self.repository, problems=news.problems)
        models = [model for model in news.models if not self._contradicts(model)]
        before = [self._take_problems(model) for model in models]
        work = Preparation(self._trials, models, progress)
        for model in models:
            for variant in model.variants:
                work.choose(model, variant)
            ready = work.found(model)
            is_due = self._is_whole(ready) and not work.awaits(model)
            if is_due or not self._served.of(model.name):
                yield ready
        for model, tried in groupby(work.challenges(), key=itemgetter(0)):
            for _, _, better in tried:
                if better is not None and self._is_current(model):
                    yield work.found(model)
            ready = work.found(model)
            if self._is_whole(ready) and not self._is_current(model):
                yield ready
        for model, problems in zip(models, before, strict=True):
            if not self._is_current(model):
                why = [f"variant '{p.variant}': {p.told()[1]}" for p in self._take_problems(model)]
                self._tell(still_served(model.name, "; ".join(why) or _AGAIN))
                self.problems += problems
        self._trials.remove_unused([*self.repository.models.values(), *self._replaced.values()])

    def adopt(self, ready: Prepared) -> tuple[list[Offer], list[Key]]:
        """Serve a model as prepared, in place of the one of its name.

        Returns:
            The offers that are new, and the variants that are not served any more.
        """
        name, served = ready.model.name, self._served
        with served.lock:
            if (known := self.repository.models.get(name, ready.model)) is not ready.model:
                self._replaced[name] = known
            models = {**self.repository.models, name: ready.model}
            self.repository = replace(self.repository, models=models)
            gone = [key for key in served.of(name) if key[1] not in ready.choices]
            for key in gone:  # first, so that no other model has to make room
                served.remove(key)
            offers = [
                served.serve(ready.model, variant, choice)
                for variant in ready.model.variants
                if (choice := ready.choices.get(variant.name)) is not None
                and served.choice((name, variant.name)) is not choice
            ]
        return offers, gone

    def _known_ns(self, model: Model) -> float:
        """How long an item of a model took when it was measured; infinite if it never was."""
        known = [self._trials.stored(model, variant) for variant in model.variants]
        profiles = [profile for found in known for profile in found.values() if profile.latency_ns]
        return min([profile.latency_ns[1][0] for profile in profiles], default=inf)

    def _is_whole(self, ready: Prepared) -> bool:
        """Whether a model can be served from the files that are there now."""
        return bool(ready.choices) and self._changes.is_as_read(ready.model.name)

    def _is_current(self, model: Model) -> bool:
        return self.repository.models.get(model.name) is model

    def _contradicts(self, model: Model) -> bool:
        """Whether a model has other inputs or outputs than what is served by its name; tells so."""
        known = self.repository.models.get(model.name, model)
        if known.signature == model.signature or not self._served.of(model.name):
            return False
        other = difference(model.signature, known.signature, "what is served") or _OTHER_ORDER
        self._tell(still_served(model.name, f"{other}; its files wait for the agent's restart"))
        return True

    def _tell(self, problem: Problem) -> None:
        problems = (*self.repository.problems, problem)
        self.repository = replace(self.repository, problems=problems)

    def _take_problems(self, model: Model) -> list[RuntimeProblem]:
        """Remove the problems of a model on this device, and return them."""
        taken = [problem for problem in self.problems if problem.model == model.name]
        for problem in taken:  # one by one: a run's thread may append another meanwhile
            self.problems.remove(problem)
        return taken

    def measured(self) -> Iterator[Measured]:
        """The stored profiles of each runtime with each variant, in the device's current state."""
        for model in self.repository.models.values():
            for variant in model.variants:
                choice = self._served.choice((model.name, variant.name))
                for runtime, profile in self._trials.stored(model, variant).items():
                    chosen = choice is not None and choice.runtime == runtime
                    yield Measured(model.name, variant.name, runtime, profile, chosen)

    def measure_again(self, model: str, variant: str) -> Offer | None:
        """Measure a variant again between the batches of `run`; it may be faster by now.

        New latencies replace the known ones only if they are faster: that a device became slower is
        learned from its batches. Batch sizes at which the new measurement stopped keep their known
        latencies, or they could never be offered again. While the device is busy, only a few single
        items are run, and all batch sizes are assumed to have become faster by the same factor;
        this result is not stored.

        Returns:
            The new offer; None if it is no faster, or the variant is not in memory.
        """
        key = model, variant
        choice = self._served.choice(key)
        if choice is None or not self._served.residency.is_loaded(key):
            return None
        self._pin_thread()
        known = choice.profile.latency_ns
        is_idle = self._again.is_idle
        try:
            found = (self._again.at_length if is_idle else self._again.briefly)(key, known)
        except Exception:  # from the library: requests meet it when they run
            return None
        if not found or self._watch.state != self._prepared_in:
            return None  # `prepare` may be due, and would find this stored for the new state
        latency_ns = {**known, **found}
        better = replace(choice, profile=replace(choice.profile, latency_ns=latency_ns))
        if is_idle:
            served = self.repository.models[model]
            self._trials.keep(served, next(v for v in served.variants if v.name == variant), better)
        return self._served.improve(key, better)

    def has_changed(self) -> bool:
        """Read the device's state, and return whether it changed so that `prepare` is due."""
        return self._watch.look() and self._trials.look_at_device()

    def has_changes(self) -> bool:
        """Look at the repository, and return whether `prepare_changes` is due."""
        return self._changes.look()

    def give_back(self) -> None:
        """While the device idles, free memory that only a batch of long ago needed."""
        self._spare.look()

    def telemetry(self) -> dict[str, Any]:
        """The latest reading as plain values; see `workers.telemetry.Reading`."""
        return self._watch.reading.known()

    def run(self, model: str, variant: str, items: list[Item]) -> list[Item | Exception]:
        """Run items together; a failing item fails alone.

        Args:
            model: An offered model.
            variant: An offered variant of it.
            items: Tensors by their names in the model's signature, without a batch dimension.

        Returns:
            The outputs of each item by name, without a batch dimension, or a `RunError`.

        Raises:
            KeyError: The variant was not offered.
        """
        self._pin_thread()
        with self._served.lock:
            key = model, variant
            try:
                runner = self._served.residency.runner(key)
            except KeyError:
                offered = ", ".join(map("/".join, self._served.keys)) or "nothing yet"
                message = f"{self.spec.id} does not serve {model}/{variant}; it serves {offered}"
                raise KeyError(message) from None
            except RunError as error:
                return [RunError(str(error)) for _ in items]  # see `ItemRunner`
            try:
                with self._served.running(key, len(items)):
                    return runner.run(items, self._served.size_for(key, len(items)))
            finally:
                self._again.served()

    def _samples(self, key: Key, count: int) -> list[Item]:
        return sample_items(self.repository.models[key[0]], count)

    def stuck(self) -> str | None:
        """Describe a batch that has run for too long to end, or None; loading has no limit."""
        return self._stuck.verdict()

    def occupy(self, seconds: float) -> int:
        """Run served variants in turn for some time, and return the number of items run."""
        return sum(len(times) for times in self._exercise(seconds).values())

    def typical_ns(self, seconds: float) -> dict[str, int]:
        """The current median time of a single item, in nanoseconds, by `model/variant`."""
        return {"/".join(key): round(median(t)) for key, t in self._exercise(seconds).items()}

    def _exercise(self, seconds: float) -> dict[Key, list[int]]:
        """Run single items of the variants in memory, in turn, until the time is up.

        Slow ones are left out, for which requests would wait.
        """
        times: dict[Key, list[int]] = {}
        ns = int(seconds * 1e9)
        samples = {key: self._samples(key, 1) for key in self._served.within(ns)}
        end_ns = time.monotonic_ns() + ns
        while samples and time.monotonic_ns() < end_ns:
            for key, items in samples.items():
                with self._served.lock:  # or it could be replaced between the two
                    if not self._served.residency.is_loaded(key):
                        continue
                    began_ns = time.perf_counter_ns()
                    self.run(*key, items)
                times.setdefault(key, []).append(time.perf_counter_ns() - began_ns)
            if not times:
                break
        return times

    def describe(self) -> str:
        """Say which device this is and what can run on it."""
        runtimes = ", ".join(f"{r.name} {r.version()}" for r in self._runtimes)
        cores = ",".join(map(str, self.spec.cores)) or "any"
        limits = "".join(f", {limit}" for limit in self._limits)
        return f"{self.spec.id} ({self.spec.kind}, cores {cores}{limits}): {runtimes}"

    def close(self) -> None:
        """Free every session. Nothing runs afterwards."""
        self._served.close()

    def _reload(self, model: Model, variant: Variant, runtime: str) -> Session:
        session = self._trials.reload(model, variant, runtime)
        if session is None:
            of = model.name, variant.name, runtime
            said = [p.reason for p in self.problems if (p.model, p.variant, p.runtime) == of]
            why = said[-1] if said else "try again"  # `prepare` has just started over
            raise RunError(f"{model.name}/{variant.name} could not be loaded again: {why}")
        return session

    def _pin_thread(self) -> None:
        if not hasattr(self._thread, "pinned"):
            pin_thread(self.spec)
            self._thread.pinned = True

    def _surroundings(
        self, state_dir: Path, max_batch: int, effort: Effort, root: Path
    ) -> Surroundings:
        # Its own probe, because rates are computed over the time since the previous read.
        meter = probe_for(self.spec, root)
        guard = CrashGuard(state_dir / ATTEMPTS)
        return Surroundings(
            ProfileStore(state_dir / "profiles", self._report_store),
            guard,
            CompiledCache(state_dir / "compiled"),
            self._watch,
            max_batch,
            effort,
            lambda: meter.read().energy_j,
            root,
            LostDevice(lambda reason: self.tell_end(reason), guard),
        )

    def _report_store(self, reason: str) -> None:
        problem = RuntimeProblem("*", "*", "*", reason)
        if problem not in self.problems:  # it is reported for each variant
            self.problems.append(problem)

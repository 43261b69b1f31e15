"""Owns one device: decides what serves each model on it, and runs batches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler.core.offers import Offer
from workers.batches import Item, ItemRunner
from workers.choice import RuntimeProblem
from workers.crash_guard import CrashGuard
from workers.model import Model, Variant
from workers.model_yaml import nearest
from workers.profile_store import ProfileStore
from workers.profiling import Effort
from workers.repository import load_repository
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceError, DeviceSpec, Runtime, Session
from workers.trials import RuntimeTrials

Progress = Callable[[int, int, str], None]
"""Told how many steps are done, how many there are, and what is happening."""


def ignore_progress(done: int, total: int, text: str) -> None:
    """A `Progress` for callers who do not show it."""


class DeviceHost:
    """The one user of a device, in a process of its own.

    `run` may be called while `prepare` goes on, from one thread each; it serves the variants
    offered so far, at the cost of disturbing what is being measured.

    Attributes:
        repository: What is in the repository, and what is wrong with it.
        problems: What went wrong with runtimes on this device so far.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        repository_root: Path,
        state_dir: Path,
        max_batch: int,
        effort: Effort | None = None,
    ) -> None:
        """Read the repository and find the device's runtimes, pinned to its cores.

        Args:
            spec: The device.
            repository_root: The model repository.
            state_dir: Where profiles and compiled models are kept between starts.
            max_batch: The device's own limit on batches, at least 1.
            effort: How much time to spend on a profile.

        Raises:
            DeviceError: The device's runtimes or cores cannot be had.
            RepositoryError: The repository's folder cannot be read.
        """
        self.spec = spec
        self._thread = threading.local()
        # First, because the threads that runtimes start inherit it.
        self._pin_thread()
        self.problems: list[RuntimeProblem] = []
        self._runtimes = self._usable_runtimes()
        self.repository = load_repository(repository_root)
        cache_dir = state_dir / "compiled" / spec.id.replace(":", "-")
        cache_dir.mkdir(parents=True, exist_ok=True)
        store = ProfileStore(state_dir / "profiles", self._report_store)
        guard = CrashGuard(state_dir / "attempts")
        self._trials = RuntimeTrials(
            spec, self._runtimes, store, guard, cache_dir, max_batch, self.problems, effort
        )
        self._runners: dict[tuple[str, str], ItemRunner] = {}
        self._sessions: list[Session] = []

    def prepare(self, progress: Progress = ignore_progress) -> Iterator[Offer]:
        """Make every variant ready, each offered as soon as it is.

        What cannot be served is left out and told in `problems`.
        """
        self._pin_thread()
        work = [(m, v) for m in self.repository.models.values() for v in m.variants]
        steps = [max(1, len(self._trials.candidates(model, variant))) for model, variant in work]
        total, done = sum(steps), 0
        for (model, variant), own_steps in zip(work, steps, strict=True):
            start = done

            def note(finished: int, text: str, start: int = start) -> None:
                progress(start + finished, total, text)

            offer = self._offer(model, variant, note)
            if offer is not None:
                yield offer
            done += own_steps
            progress(done, total, f"{model.name}/{variant.name}")

    def run(self, model: str, variant: str, items: list[Item]) -> list[Item | Exception]:
        """Run items together; a failing item fails alone.

        Args:
            model: A model that was offered.
            variant: A variant of it that was offered.
            items: Tensors by name as in the model's signature, without a batch dimension.

        Returns:
            Per item its outputs by name, without a batch dimension, or a `RunError`.

        Raises:
            KeyError: The variant was not offered.
        """
        runner = self._runners.get((model, variant))
        if runner is None:
            offered = ", ".join(map("/".join, list(self._runners))) or "nothing yet"
            raise KeyError(f"{self.spec.id} does not serve {model}/{variant}; it serves {offered}")
        self._pin_thread()
        return runner.run(items)

    def describe(self) -> str:
        """Say which device this is and what can run on it."""
        runtimes = ", ".join(f"{r.name} {r.version()}" for r in self._runtimes)
        cores = ",".join(map(str, self.spec.cores)) or "any"
        return f"{self.spec.id} ({self.spec.kind}, cores {cores}): {runtimes}"

    def close(self) -> None:
        """Free every session. Nothing runs afterwards."""
        self._runners.clear()
        while self._sessions:
            self._sessions.pop().close()

    def _offer(
        self, model: Model, variant: Variant, note: Callable[[int, str], None]
    ) -> Offer | None:
        choice = self._trials.choose(model, variant, note)
        if choice is None:
            return None
        self._sessions.append(choice.session)
        runner = ItemRunner(choice.session, model.signature.batched)
        self._runners[model.name, variant.name] = runner
        return Offer(
            model=model.name,
            variant=variant.name,
            runtime=choice.runtime,
            latency_ns=choice.latency_ns,
            rank=variant.rank,
            accuracy=variant.accuracy,
        )

    def _usable_runtimes(self) -> list[Runtime]:
        """The runtimes to use. A missing one is a problem; that none is left, an error."""
        names = self.spec.runtimes or tuple(name for name in RUNTIMES if name != "emulated")
        if "emulated" in names and len(names) > 1:
            raise DeviceError(f"{self.spec.id}: 'emulated' answers zeros and must be alone")
        usable, reasons = [], []
        for name in names:
            if name not in RUNTIMES:
                hint = nearest(name, RUNTIMES)
                raise DeviceError(f"{self.spec.id}: no runtime is called '{name}' ({hint})")
            runtime = RUNTIMES[name]()
            reason = _why_unusable(runtime, self.spec)
            if reason is None:
                usable.append(runtime)
            else:
                reasons.append(reason)
                self.problems.append(RuntimeProblem("*", "*", name, reason))
        if not usable:
            raise DeviceError(f"{self.spec.id} has no runtime: {'; '.join(reasons)}")
        return usable

    def _pin_thread(self) -> None:
        if hasattr(self._thread, "pinned") or not self.spec.cores:
            return
        wanted = set(self.spec.cores)
        try:
            os.sched_setaffinity(0, wanted)
        except OSError as error:
            present = os.cpu_count()
            raise DeviceError(
                f"{self.spec.id}: cannot run on cores {sorted(wanted)} of {present}: {error}"
            ) from error
        granted = os.sched_getaffinity(0)
        if granted != wanted:
            raise DeviceError(
                f"{self.spec.id}: of cores {sorted(wanted)} only {sorted(granted)} can be had"
            )
        self._thread.pinned = True

    def _report_store(self, reason: str) -> None:
        self.problems.append(RuntimeProblem("*", "*", "*", reason))


def _why_unusable(runtime: Runtime, spec: DeviceSpec) -> str | None:
    if spec.kind not in runtime.kinds:
        kinds = ", ".join(sorted(runtime.kinds))
        return f"{runtime.name} computes on {kinds}, not on a {spec.kind}"
    return runtime.missing()

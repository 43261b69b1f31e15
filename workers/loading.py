"""Load variants on a device without letting one of them harm the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.case import Case
from workers.choice import RuntimeProblem
from workers.compiled_cache import CompiledCache
from workers.crash_guard import CrashGuard
from workers.device_watch import DeviceWatch
from workers.fingerprint import Fingerprint, fingerprint, fingerprint_id
from workers.memory import available_bytes, lack_of_room, name_shortage, resident_bytes
from workers.model_files import ModelFileFault, files_digest
from workers.profile_store import ProfileStore
from workers.profiling import Effort
from workers.runtimes.base import (
    Builder,
    DeviceSpec,
    ModelLoadError,
    Runtime,
    Session,
    Tell,
    one_line,
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the trials of a device have around them.

    Attributes:
        store: Where profiles are kept.
        guard: Knows what the process died of before.
        cache: Where compiled models are kept.
        watch: Knows how the device is set.
        max_batch: The device's own limit on batches.
        effort: How much time to spend on a profile.
        joules: What the device has drawn so far, or None where nothing meters it.
        root: Where `/proc` and `/sys` are found.
    """

    store: ProfileStore
    guard: CrashGuard
    cache: CompiledCache
    watch: DeviceWatch
    max_batch: int
    effort: Effort | None = None
    joules: Callable[[], float | None] = lambda: None
    root: Path = Path("/")


class Loader:
    """Loads and builds for one device; what goes wrong becomes a problem.

    Attributes:
        device: The device.
        around: What is around it.
        fingerprints: By runtime, what its measurements here depend on.
    """

    def __init__(
        self,
        device: DeviceSpec,
        runtimes: Sequence[Runtime],
        around: Surroundings,
        problems: list[RuntimeProblem],
    ) -> None:
        """Load with the runtimes that can be used on a device, the trusted one first."""
        self.device = device
        self.around = around
        self.fingerprints: dict[str, Fingerprint] = {}
        self._runtimes = runtimes
        self._problems = problems
        self._label = device.id.replace(":", "-")
        self.look_at_device()

    def look_at_device(self) -> bool:
        """Take in how the device is set; whether that has changed since the last look."""
        before = dict(self.fingerprints)
        for runtime in self._runtimes:
            of = fingerprint(self.device, runtime, self.around.watch.state, self.around.root)
            self.fingerprints[runtime.name] = of
            stale = self.around.store.superseded(of) if of != before.get(runtime.name) else None
            if stale is not None:
                self._problems.append(RuntimeProblem("*", "*", runtime.name, stale))
        return before != self.fingerprints

    def folder(self, runtime: Runtime, case: Case) -> Path:
        """Where a runtime keeps what it compiles of a variant."""
        of = self.fingerprints[runtime.name]
        keys = ["kind", "processor", "runtime", "options"]
        if self.device.kind == "cpu":
            keys.append("cores")  # what an accelerator runs does not depend on its host's cores
        conditions = {key: of[key] for key in keys}
        case_key = case.key(self.around.max_batch)
        return self.around.cache.folder(self._label, {**conditions, "case": case_key})

    def is_exchanged(self, case: Case, runtime: str = "*") -> bool:
        """Whether a variant's file is another one by now, which is a problem then.

        That is not what was measured, nor what others keep answers and compiled models of: it is
        served from the next start on.
        """
        try:
            exchanged = files_digest(case.variant.path) != case.variant.digest
        except (OSError, ModelFileFault):
            return False  # the runtime says what is wrong with it
        if exchanged:
            self.report(case, runtime, "its file was exchanged since the box started")
        return exchanged

    def lacks_room(self, case: Case) -> bool:
        """Whether a variant cannot fit into memory, which is a problem then."""
        available = available_bytes(self.around.root)
        limit = self.device.limits.memory_bytes
        if limit is not None:
            left = max(0, limit - resident_bytes(self.around.root))
            available = left if available is None else min(left, available)
        reason = lack_of_room(case.variant.path, available)
        if reason is not None:
            self.report(case, "*", reason)
        return reason is not None

    def is_deadly(self, runtime: Runtime, case: Case) -> bool:
        """Whether the process has died of it too often, which is a problem then."""
        verdict = self.around.guard.verdict(self.attempt(runtime, case))
        if verdict is not None:
            self.report(case, runtime.name, verdict)
        return verdict is not None

    def attempt(self, runtime: Runtime, case: Case) -> str:
        """What the crash guard calls the trial of a runtime with a variant.

        With the device's name: others like it try the same at the same time, and what is under
        way looks like a death.
        """
        of = fingerprint_id(self.fingerprints[runtime.name])
        return f"{self._label}-{of}-{case.key(self.around.max_batch)}"

    def load(self, runtime: Runtime, case: Case) -> Session | None:
        """Load a variant, guarded; None, with a problem, if that fails."""
        if self.is_deadly(runtime, case):
            return None
        with self.around.guard.watch(self.attempt(runtime, case)):
            return self.open(runtime, case)

    def open(self, runtime: Runtime, case: Case) -> Session | None:
        """Load a variant within an attempt that the caller guards."""
        folder = self._checked_folder(runtime, case)
        if folder is None:
            return None
        try:
            session = runtime.load(case.model, case.variant, self.device, folder)
        except ModelLoadError as error:
            self.report(case, runtime.name, name_shortage(case.variant.path, str(error)))
        except Exception as error:  # a library's fault with one model must not lose the others
            reason = f"failed to load: {spell(error)}"
            self.report(case, runtime.name, name_shortage(case.variant.path, reason))
        else:
            self._seal(runtime, case, folder)
            return session
        return None

    def must_build(self, runtime: Runtime, case: Case) -> bool:
        """Whether a runtime has to compile a variant for minutes before it can load it."""
        if not isinstance(runtime, Builder):
            return False
        folder = self._checked_folder(runtime, case)
        return folder is None or not runtime.is_built(folder)

    def build(self, runtime: Runtime, case: Case, tell: Tell) -> bool:
        """Compile a variant if it has to be; whether it can be loaded now."""
        if not isinstance(runtime, Builder) or not self.must_build(runtime, case):
            return True
        if self.is_deadly(runtime, case):
            return False
        folder = self._checked_folder(runtime, case)
        if folder is None:
            return False
        try:
            with self.around.guard.watch(self.attempt(runtime, case)):
                runtime.build(case.model, case.variant, self.device, folder, tell)
        except Exception as error:  # as in open
            self.report(case, runtime.name, f"failed to build: {spell(error)}")
            return False
        self._seal(runtime, case, folder)
        return True

    def _checked_folder(self, runtime: Runtime, case: Case) -> Path | None:
        """The folder of a variant, holding nothing foreign; None, with a problem, if that fails."""
        try:
            folder = self.folder(runtime, case)
            broken = self.around.cache.check(folder)
        except OSError as error:
            reason = f"the folder for what it compiles cannot be used: {error}"
            self.report(case, runtime.name, reason)
            return None
        if broken is not None:
            self.report(case, runtime.name, broken)
        return folder

    def report(self, case: Case, runtime: str, reason: str) -> None:
        """Note a problem, once however often it is met."""
        problem = RuntimeProblem(case.model.name, case.variant.name, runtime, reason)
        if problem not in self._problems:
            self._problems.append(problem)

    def _seal(self, runtime: Runtime, case: Case, folder: Path) -> None:
        try:
            self.around.cache.seal(folder)
        except OSError as error:
            self.report(case, runtime.name, f"what it compiled could not be kept: {error}")


def spell(error: Exception) -> str:
    """An exception of any library on one line."""
    if isinstance(error, ModelLoadError):
        return str(error)
    return f"{type(error).__name__}: {one_line(error)}"

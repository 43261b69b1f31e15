"""Load variants on a device so that a bad one cannot harm the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.case import Case
from workers.choice import RuntimeProblem
from workers.compiled_cache import CompiledCache
from workers.crash_guard import CrashGuard
from workers.device_watch import DeviceWatch
from workers.fingerprint import Fingerprint, fingerprint, fingerprint_id
from workers.lost_device import LostDevice
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
    spell,
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that a device's trials share.

    Attributes:
        store: The stored profiles.
        guard: Knows which attempts the process did not survive.
        cache: The compiled models.
        watch: Knows the device's state.
        max_batch: The device's own largest batch size.
        effort: How much time to spend on a profile.
        joules: Returns the energy that the device has drawn so far, or None where nothing meters
            it.
        root: Where `/proc` and `/sys` are found.
        lost: Ends the process if the device is lost to it.
    """

    store: ProfileStore
    guard: CrashGuard
    cache: CompiledCache
    watch: DeviceWatch
    max_batch: int
    effort: Effort
    joules: Callable[[], float | None]
    root: Path
    lost: LostDevice


class Loader:
    """Loads and builds variants for one device; a failure becomes a problem.

    Attributes:
        device: The device.
        around: What the device's trials share.
        fingerprints: By runtime, the fingerprint of its measurements here.
    """

    def __init__(
        self,
        device: DeviceSpec,
        runtimes: Sequence[Runtime],
        around: Surroundings,
        problems: list[RuntimeProblem],
    ) -> None:
        """Load with the runtimes usable on a device, the most trusted first."""
        self.device = device
        self.around = around
        self.fingerprints: dict[str, Fingerprint] = {}
        self._runtimes = runtimes
        self._problems = problems
        self.look_at_device()

    def look_at_device(self) -> bool:
        """Update the fingerprints, and return whether any has changed since the last call."""
        before = dict(self.fingerprints)
        for runtime in self._runtimes:
            of = fingerprint(self.device, runtime, self.around.watch.state, self.around.root)
            self.fingerprints[runtime.name] = of
            stale = self.around.store.superseded(of) if of != before.get(runtime.name) else None
            if stale is not None:
                self._problems.append(RuntimeProblem("*", "*", runtime.name, stale))
        return before != self.fingerprints

    def folder(self, runtime: Runtime, case: Case) -> Path:
        """The folder where a runtime keeps a compiled variant."""
        of = self.fingerprints[runtime.name]
        keys = ["kind", "processor", "runtime", "options"]
        if self.device.kind == "cpu":
            keys.append("cores")  # what an accelerator runs does not depend on the host's cores
        conditions = {key: of[key] for key in keys}
        case_key = case.key(self.around.max_batch)
        return self.around.cache.folder(self.device.file_name, {**conditions, "case": case_key})

    def remove_unused(self, cases: Iterable[Case]) -> None:
        """Remove the folders of all others, and those not asked for since the start."""
        keys = {case.key(self.around.max_batch) for case in cases}
        self.around.cache.remove_unused(self.device.file_name, keys)

    def is_exchanged(self, case: Case, runtime: str = "*") -> bool:
        """Whether a variant's file was replaced since it was read; if so, report a problem.

        The new file is not the one that was measured, nor the one behind cached answers and
        compiled models. It is served once it has been prepared.
        """
        try:
            exchanged = files_digest(case.variant.path) != case.variant.digest
        except (OSError, ModelFileFault):
            return False  # the runtime reports what is wrong with it
        if exchanged:
            self.report(case, runtime, "its file was replaced, and is not served yet")
        return exchanged

    def lacks_room(self, case: Case) -> bool:
        """Whether a variant cannot fit into memory; if so, report a problem."""
        available = available_bytes(self.around.root)
        limit = self.device.limits.memory_bytes
        if limit is not None:
            left = max(0, limit - resident_bytes(self.around.root))
            available = left if available is None else min(left, available)
        reason = lack_of_room(case.variant.path, available)
        if reason is not None:
            self.report(case, "*", reason)
        return reason is not None

    def is_deadly(self, runtime: Runtime | None, case: Case) -> bool:
        """Whether the process has died of this attempt too often; if so, report a problem."""
        verdict = self.around.guard.verdict(self.attempt(runtime, case))
        if verdict is not None:
            self.report(case, "*" if runtime is None else runtime.name, verdict)
        return verdict is not None

    def attempt(self, runtime: Runtime | None, case: Case) -> str:
        """The crash guard's key for the trial of a runtime, or the reference, with a variant.

        It includes the device's name: an identical device may make the same attempt at the same
        time, and an attempt in progress looks like a death.
        """
        of = "reference" if runtime is None else fingerprint_id(self.fingerprints[runtime.name])
        return f"{self.device.file_name}-{of}-{case.key(self.around.max_batch)}"

    def load(self, runtime: Runtime, case: Case) -> Session | None:
        """Load a variant within a guarded attempt; on failure, report a problem and return None."""
        if self.is_deadly(runtime, case):
            return None
        with self.around.guard.watch(self.attempt(runtime, case)):
            return self.open(runtime, case)

    def open(self, runtime: Runtime, case: Case) -> Session | None:
        """Load a variant like `load`, within an attempt that the caller guards."""
        folder = self._checked_folder(runtime, case)
        if folder is None:
            return None
        try:
            session = runtime.load(case.model, case.variant, self.device, folder)
        except ModelLoadError as error:
            self.around.lost.end_if_lost(runtime, self.attempt(runtime, case))
            self.report(case, runtime.name, name_shortage(case.variant.path, str(error)))
        except Exception as error:  # a library's failure with one model must not lose the others
            self.around.lost.end_if_lost(runtime, self.attempt(runtime, case))
            reason = f"failed to load: {spell(error)}"
            self.report(case, runtime.name, name_shortage(case.variant.path, reason))
        else:
            self._seal(runtime, case, folder)
            return self.around.lost.watched(session, runtime, self.attempt(runtime, case))
        return None

    def must_build(self, runtime: Runtime, case: Case) -> bool:
        """Whether a runtime must first compile a variant, which takes minutes, to load it."""
        if not isinstance(runtime, Builder):
            return False
        folder = self._checked_folder(runtime, case)
        return folder is None or not runtime.is_built(folder)

    def build(self, runtime: Runtime, case: Case, tell: Tell) -> bool:
        """Compile a variant if needed, and return whether it can be loaded now."""
        if not isinstance(runtime, Builder) or not self.must_build(runtime, case):
            return True
        if self.is_deadly(runtime, case):
            return False
        folder = self._checked_folder(runtime, case)
        if folder is None:
            return False
        try:
            with self.around.guard.watch(self.attempt(runtime, case)):
                try:
                    runtime.build(case.model, case.variant, self.device, folder, tell)
                except Exception:
                    self.around.lost.end_if_lost(runtime, self.attempt(runtime, case))
                    raise
        except Exception as error:  # as in open
            self.report(case, runtime.name, f"failed to build: {spell(error)}")
            return False
        self._seal(runtime, case, folder)
        return True

    def _checked_folder(self, runtime: Runtime, case: Case) -> Path | None:
        """The verified folder of a variant; on failure, report a problem and return None."""
        try:
            folder = self.folder(runtime, case)
            broken = self.around.cache.check(folder)
        except OSError as error:
            reason = f"the folder for its compiled models cannot be used: {error}"
            self.report(case, runtime.name, reason)
            return None
        if broken is not None:
            self.report(case, runtime.name, broken)
        return folder

    def report(self, case: Case, runtime: str, reason: str) -> None:
        """Add a problem, unless it is already there."""
        problem = RuntimeProblem(case.model.name, case.variant.name, runtime, reason)
        if problem not in self._problems:
            self._problems.append(problem)

    def _seal(self, runtime: Runtime, case: Case, folder: Path) -> None:
        try:
            self.around.cache.seal(folder)
        except OSError as error:
            self.report(case, runtime.name, f"its compiled model could not be stored: {error}")

"""Keep profiles on disk, so that a restart does not measure again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.files import replace_file
from workers.fingerprint import Fingerprint, fingerprint_id
from workers.profiling import LatencySamples

_MAY_CHANGE = {"runtime", "power", "throttled"}
"""The parts of a fingerprint that can change on the same device."""

_MOST_OF_EACH, _MOST = 8, 1000
"""How many profiles are kept under a fingerprint, of each variant and in all: the last ones, so
that going back to earlier files costs nothing. The whole file is read for each, and a model's files
may be replaced every day."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements of a runtime with a variant on a device.

    Attributes:
        latency_ns: Batch size to ascending, equally likely latencies in nanoseconds; empty
            when the runtime was rejected.
        rejected: Why the runtime must not serve the variant (its answers are off), or None.
        load_ns: How long loading took, in nanoseconds.
        energy_uj: Batch size to the energy per batch, in microjoules, where the box meters it.
        partial: True when it lost to another runtime at batch size 1 and was not measured further.
        limited: Why larger batches are not used, or None.
    """

    latency_ns: LatencySamples = field(hash=False)
    rejected: str | None = None
    load_ns: int = 0
    energy_uj: Mapping[int, int] = field(default_factory=dict, hash=False)
    partial: bool = False
    limited: str | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    variant: str
    latency_ns: dict[int, tuple[int, ...]]
    rejected: str | None
    load_ns: int = 0
    energy_uj: dict[int, int] = {}
    partial: bool = False
    limited: str | None = None


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int = 1
    fingerprint: Fingerprint
    profiles: dict[str, _Entry] = {}  # the oldest first


class ProfileStore:
    """One JSON file per device fingerprint in a folder.

    An unreadable file is reported, counts as empty, and is replaced by the next `put`.
    """

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        """Use a folder, which is created if absent; `report` is told of unreadable files."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._report = report

    def path(self, of: Fingerprint) -> Path:
        """The file of a fingerprint."""
        return self._directory / f"{fingerprint_id(of)}.json"

    def get(self, of: Fingerprint, key: str) -> Profile | None:
        """The profile stored under a fingerprint and key, or None."""
        entry = self._read(of).profiles.get(key)
        if entry is None:
            return None
        return Profile(**entry.model_dump(exclude={"model", "variant"}))

    def put(self, of: Fingerprint, key: str, model: str, variant: str, profile: Profile) -> None:
        """Store a profile; the oldest make room for it."""
        document = self._read(of)
        document.profiles.pop(key, None)  # the newest comes last
        document.profiles[key] = _Entry(model=model, variant=variant, **asdict(profile))
        document.profiles = _newest(document.profiles)
        self._directory.mkdir(parents=True, exist_ok=True)  # it may have been removed meanwhile
        replace_file(self.path(of), document.model_dump_json(indent=1), durable=True)

    def superseded(self, of: Fingerprint) -> str | None:
        """Describe what has changed since a device was last measured, or return None.

        Returns:
            A text for people, if no profile has this fingerprint but one differs from it only
            in the runtime's version or the device's state.
        """
        if self.path(of).exists():
            return None
        for path in sorted(self._directory.glob("*.json"), key=_age):
            try:
                before = _Document.model_validate_json(path.read_bytes()).fingerprint
            except (OSError, ValidationError):
                continue  # `get` reports it if it is this device's
            if before.keys() != of.keys() or _library(before) != _library(of):
                continue  # from another version of laxity, or another library
            changed = [key for key in of if of[key] != before[key]]
            if changed and set(changed) <= _MAY_CHANGE:
                spelt = " and ".join(
                    f"'{before[key]}' has become '{of[key]}'" for key in sorted(changed)
                )
                return f"{spelt}: earlier measurements are stale; measuring again"
        return None

    def _read(self, of: Fingerprint) -> _Document:
        path = self.path(of)
        try:
            document = _Document.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return _Document(fingerprint=of)
        except (OSError, ValidationError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
            self._report(f"profiles in {path} are unreadable; measuring again: {why}")
            return _Document(fingerprint=of)
        sound = all(map(_is_sound, document.profiles.values()))
        if not sound or document.format != 1 or document.fingerprint != of:
            self._report(f"profiles in {path} do not fit this version; measuring again")
            return _Document(fingerprint=of)
        return document


def _newest(profiles: Mapping[str, _Entry]) -> dict[str, _Entry]:
    of_each: Counter[tuple[str, str]] = Counter()
    kept: list[tuple[str, _Entry]] = []
    for key, entry in reversed(list(profiles.items())):
        of_each[entry.model, entry.variant] += 1
        if of_each[entry.model, entry.variant] <= _MOST_OF_EACH:
            kept.append((key, entry))
    return dict(reversed(kept[:_MOST]))


def _library(of: Fingerprint) -> str:
    return of.get("runtime", "").partition(" ")[0]


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _is_sound(entry: _Entry) -> bool:
    ladder = entry.latency_ns
    if min(entry.energy_uj.values(), default=0) < 0:
        return False
    if entry.rejected is not None:
        return not ladder
    return 1 in ladder and all(
        batch >= 1 and samples and samples[0] > 0 and list(samples) == sorted(samples)
        for batch, samples in ladder.items()
    )

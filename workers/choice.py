"""Choose which of the measured runtimes serves a variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from workers.profile_store import Profile
from workers.profiling import LatencySamples
from workers.runtimes.base import Session

LATENCY_SLACK = 1.25
"""A runtime whose single-item median is within this factor of the best may win by throughput."""


@dataclass(frozen=True, slots=True)
class RuntimeProblem:
    """Why a runtime does not serve a variant, or not as well as it might.

    Attributes:
        model: The model's name, or `*` for all of them.
        variant: The variant's name, or `*` for all of them.
        runtime: The runtime's name, or `*` for all of them.
        reason: What happened.
    """

    model: str
    variant: str
    runtime: str
    reason: str

    def told(self) -> tuple[str, str]:
        """What it concerns, and what happened, for people."""
        what = "all models" if self.model == "*" else f"{self.model}/{self.variant}"
        return what, self.reason if self.runtime == "*" else f"{self.runtime}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime that serves a variant.

    Attributes:
        runtime: Its name.
        session: The loaded variant.
        profile: Its measurements.
    """

    runtime: str
    session: Session
    profile: Profile


def best_runtime(profiles: Mapping[str, Profile]) -> str | None:
    """Pick the best runtime, or None if all were rejected.

    The best is the one with the most items per second among those whose single-item median is
    within `LATENCY_SLACK` of the fastest. Single-item latency decides which deadlines can be met at
    all, so little of it may be given up; beyond that, throughput decides how many are met under
    load.
    """
    ladders = {name: p.latency_ns for name, p in profiles.items() if p.rejected is None}
    if not ladders:
        return None
    alone = {name: median(ladder[1]) for name, ladder in ladders.items()}
    limit = min(alone.values()) * LATENCY_SLACK
    return max(
        (name for name in ladders if alone[name] <= limit),
        key=lambda name: (_items_per_ns(ladders[name]), -alone[name]),
    )


def has_lost(ladder: LatencySamples, rivals: Iterable[Profile]) -> bool:
    """Whether a runtime is too slow at batch size 1 to win, however well it batches."""
    fastest = min((median(r.latency_ns[1]) for r in rivals if r.rejected is None), default=None)
    return fastest is not None and median(ladder[1]) > fastest * LATENCY_SLACK


def _items_per_ns(ladder: LatencySamples) -> float:
    return max(batch / median(samples) for batch, samples in ladder.items())

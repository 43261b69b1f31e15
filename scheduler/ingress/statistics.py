"""Counts and durations of requests per model variant, since the start."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from typing import Any

from scheduler.daemon.submission import Answer

BOUNDS_MS = (
    1, 2, 5, 10, 20, 33, 50, 75, 100, 150, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 100_000,
)  # fmt: skip
"""Upper bounds of the duration buckets; one more bucket counts longer durations."""

_BOUNDS_NS = [bound * 1_000_000 for bound in BOUNDS_MS]


class _Counts:
    """The counts of one variant; durations in nanoseconds."""

    __slots__ = (
        "batches", "durations", "fail", "fail_ns", "hit", "hit_ns", "last_ms", "miss", "queue_ns",
        "success", "success_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.success = self.success_ns = self.fail = self.fail_ns = self.queue_ns = 0
        self.last_ms = self.hit = self.hit_ns = self.miss = 0
        self.batches: dict[int, list[int]] = {}
        self.durations = [0] * (len(_BOUNDS_NS) + 1)


class Statistics:
    """Counts answers."""

    def __init__(self) -> None:
        """Starts with no answers."""
        self._counts: dict[tuple[str, str], _Counts] = {}

    def note(self, model: str, variant: str | None, answer: Answer) -> None:
        """Counts one answer; a refusal that names no variant counts under `""`."""
        counts = self._of(model, answer.offer.variant if answer.offer is not None else variant)
        queue_ns, transfer_ns, execute_ns, total_ns = answer.timing_ns
        if answer.outputs is None:
            counts.fail += 1
            counts.fail_ns += total_ns
            return
        counts.success += 1
        counts.success_ns += total_ns
        counts.durations[bisect_left(_BOUNDS_NS, total_ns)] += 1
        counts.last_ms = time.time_ns() // 1_000_000
        if answer.cache == "hit":  # nothing ran for it
            counts.hit += 1
            counts.hit_ns += total_ns
            return
        counts.miss += answer.cache == "miss"
        counts.queue_ns += queue_ns
        batch = counts.batches.get(answer.batch)
        if batch is None:
            batch = counts.batches[answer.batch] = [0, 0, 0]
        batch[0] += 1
        batch[1] += transfer_ns
        batch[2] += execute_ns

    def note_refused(self, model: str, variant: str | None) -> None:
        """Counts a request that was refused before it could be queued."""
        self._of(model, variant).fail += 1

    def _of(self, model: str, variant: str | None) -> _Counts:
        counts = self._counts.get((model, variant or ""))
        if counts is None:
            counts = self._counts[model, variant or ""] = _Counts()
        return counts

    def describe(self) -> list[dict[str, Any]]:
        """The counts of each variant, in the form of Triton's statistics extension.

        A batch of n is noted n times, once per answer, so executions are answers divided by batch
        size. `durations` is laxity's own: pairs of an upper bound in milliseconds, None for the
        last, and how many results took longer than the bound before but not longer than this one.
        """
        return [
            _describe(model, variant, counts)
            for (model, variant), counts in sorted(self._counts.items())
        ]


def _describe(model: str, variant: str, counts: _Counts) -> dict[str, Any]:
    transfer_ns = sum(batch[1] for batch in counts.batches.values())
    execute_ns = sum(batch[2] for batch in counts.batches.values())
    ran = counts.success - counts.hit
    batches: list[dict[str, Any]] = [
        {
            "batch_size": size,
            "compute_input": _duration(_runs(size, answers), transfer_ns // size),
            "compute_infer": _duration(_runs(size, answers), execute_ns // size),
            "compute_output": _duration(_runs(size, answers), 0),
        }
        for size, (answers, transfer_ns, execute_ns) in sorted(counts.batches.items())
    ]
    return {
        "name": model,
        "version": variant,
        "last_inference": counts.last_ms,
        "inference_count": counts.success,
        "execution_count": sum(batch["compute_infer"]["count"] for batch in batches),
        "inference_stats": {
            "success": _duration(counts.success, counts.success_ns),
            "fail": _duration(counts.fail, counts.fail_ns),
            "queue": _duration(ran, counts.queue_ns),
            "compute_input": _duration(ran, transfer_ns),
            "compute_infer": _duration(ran, execute_ns),
            "compute_output": _duration(ran, 0),
            "cache_hit": _duration(counts.hit, counts.hit_ns),
            "cache_miss": _duration(counts.miss, 0),
        },
        "batch_stats": batches,
        "durations": list(zip((*BOUNDS_MS, None), counts.durations, strict=True)),
    }


def _runs(size: int, answers: int) -> int:
    return math.ceil(answers / size)


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}

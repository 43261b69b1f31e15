"""Output of `laxity infer`: how requests ended, and where their time went."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from scheduler.cli.inputs import Prepared
from scheduler.cli.streams import WrongUsage
from scheduler.cli.tables import outputs_view, top_values
from scheduler.core.figures import figure
from scheduler.errors import DeadlineInfeasible, LaxityError
from scheduler.files import write_output
from scheduler.result import Result
from scheduler.texts import decoded, dtype_name

_SHOWN_VALUES = 1000
"""In JSON, outputs with more values than this are described, not listed in full."""

_RUNS_LISTED = 10


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that has ended.

    Attributes:
        latency_ms: Time from the call until its end was known here.
        result: Its result; None if it has none.
        error: Why it has no result.
    """

    latency_ms: float
    result: Result | None
    error: Exception | None

    @property
    def outcome(self) -> str:
        """The name of its outcome."""
        if self.result is not None:
            return self.result.outcome.value
        return str(getattr(self.error, "code", "cancelled"))


def why(error: Exception) -> str:
    """An error of a request in one line, with its counter-offer if there is one."""
    code = getattr(error, "code", "cancelled")
    text = f"{code}: {error}"
    if isinstance(error, DeadlineInfeasible) and error.earliest_ms is not None:
        text += f"; possible now: --deadline-ms {_rounded_up(error.earliest_ms)}"
    return text


def _rounded_up(milliseconds: float) -> str:
    return f"{np.ceil(milliseconds * 10) / 10:.1f}".removesuffix(".0")


# -- for people


def show(
    console: Console,
    model: str,
    inputs: Mapping[str, Prepared],
    ended: Sequence[Ended],
    deadline_ms: float,
    top: int,
) -> None:
    """Prints how the requests ended, and the outputs of the last one that has any."""
    for name, prepared in inputs.items():
        if prepared.steps:
            console.print(
                f"{name}: {', '.join(prepared.steps)}", style="dim", markup=False, soft_wrap=True
            )
    for line in _ways(model, ended, deadline_ms):
        console.print(line, markup=False, soft_wrap=True)
    results = [one.result for one in ended if one.result is not None]
    if results:
        for part in outputs_view(results[-1].outputs, top):
            console.print(part)


def _ways(model: str, ended: Sequence[Ended], deadline_ms: float) -> Iterable[str]:
    for number, one in enumerate(ended[:_RUNS_LISTED], 1):
        prefix = f"{number:>3}  " if len(ended) > 1 else ""
        if one.result is None:
            if len(ended) > 1:
                yield f"{prefix}{one.outcome} after {figure(one.latency_ms)} ms"
            continue
        yield prefix + _way(model, one.result)
        yield " " * len(prefix) + _times(one, one.result, deadline_ms)
        for key, note in one.result.notes.items():
            yield " " * len(prefix) + f"{key}: {note}"
    if len(ended) > _RUNS_LISTED:
        yield f"     ... and {len(ended) - _RUNS_LISTED} more"
    if len(ended) > 1:
        yield _summary(ended)


def _way(model: str, result: Result) -> str:
    shared = f", in a batch of {result.batch}" if result.batch > 1 else ""
    return (
        f"{result.outcome.value}: {model}/{result.variant} on {result.target} "
        f"({result.runtime}){shared}"
    )


def _times(one: Ended, result: Result, deadline_ms: float) -> str:
    timing = result.timing
    left = deadline_ms - one.latency_ms
    laxity = f"{figure(left)} ms left" if left >= 0 else f"{figure(-left)} ms late"
    queue, transfer, execute = (
        figure(max(0, ns) / 1e6) for ns in (timing.queue_ns, timing.transfer_ns, timing.execute_ns)
    )
    return (
        f"{figure(one.latency_ms)} ms of {figure(deadline_ms)} ms, {laxity}"
        f"  (queue {queue}, transfer {transfer}, execute {execute}, "
        f"box {figure(timing.total_ns / 1e6)})"
    )


def _summary(ended: Sequence[Ended]) -> str:
    counts = Counter(one.outcome for one in ended)
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    latencies = [one.latency_ms for one in ended if one.result is not None]
    if not latencies:
        return said
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99))
    return f"{said}; p50 {figure(p50)}, p95 {figure(p95)}, p99 {figure(p99)} ms"


# -- for programs


def report(
    model: str,
    inputs: Mapping[str, Prepared],
    ended: Sequence[Ended],
    deadline_ms: float,
    top: int,
) -> dict[str, Any]:
    """Everything that `show` prints, as plain values."""
    results = [one.result for one in ended if one.result is not None]
    outputs = results[-1].outputs if results else {}
    return {
        "model": model,
        "deadline_ms": deadline_ms,
        "inputs": {
            name: {**_describe(prepared.array), "steps": list(prepared.steps)}
            for name, prepared in inputs.items()
        },
        "requests": [_request(one, deadline_ms) for one in ended],
        "outputs": described_outputs(outputs, top),
    }


def described_outputs(outputs: Mapping[str, NDArray[Any]], top: int) -> dict[str, Any]:
    """Shape and largest values of each output, and all values if there are few."""
    return {
        name: {
            **_describe(array),
            "top": [{"index": index, "value": value} for index, value in top_values(array, top)],
            **({"values": decoded(array).tolist()} if array.size <= _SHOWN_VALUES else {}),
        }
        for name, array in outputs.items()
    }


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": dtype_name(array), "shape": list(array.shape)}


def _request(one: Ended, deadline_ms: float) -> dict[str, Any]:
    said: dict[str, Any] = {"outcome": one.outcome, "latency_ms": round(one.latency_ms, 4)}
    if one.result is None:
        detail = one.error.detail if isinstance(one.error, LaxityError) else {}
        return {**said, "message": str(one.error), "detail": detail}
    timing = one.result.timing._asdict()
    return {
        **said,
        "laxity_ms": round(deadline_ms - one.latency_ms, 4),
        "target": one.result.target,
        "variant": one.result.variant,
        "runtime": one.result.runtime,
        "batch": one.result.batch,
        "notes": one.result.notes,
        "timing_ms": {key.removesuffix("_ns"): round(ns / 1e6, 4) for key, ns in timing.items()},
    }


def save(path: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Writes outputs as .npz, under their names.

    Raises:
        WrongUsage: The file can't be written.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # np.savez has names of its own, as `file`
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    try:
        write_output(path, packed.getvalue())
    except OSError as error:
        raise WrongUsage(f"{path} can't be written: {error.strerror}") from None

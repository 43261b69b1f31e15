"""An experiment against a running box, with the same results as a simulated one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from replay.accuracy import Accuracy
from replay.experiment import Experiment
from replay.live.endings import LiveEnding, LiveTally, OnProgress
from replay.live.inputs import random_inputs
from replay.live.replay import play_live
from replay.results import ANSWERED, Row, RunResult, SendLag
from replay.sources import WorkloadSource
from replay.workloads import Clients, TraceStream
from scheduler import Client, LaxityError
from scheduler.core.outcomes import REFUSALS, Outcome

CONNECT_TIMEOUT_S = 2.0

_CACHED = "cache", "cache (running)", "cache (near)"
"""The targets of answers from a box's cache, as they appear in `scheduler.Result.target`."""

_EXPECTED = {*ANSWERED, *REFUSALS, Outcome.EXPIRED.value}
"""Outcomes that a replay is about; for the others the reason is noted."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run while requests were sent, or its `__cause__` did, e.g. a broken trace.

    Attributes:
        result: The result over the requests that had ended.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__()
        self.result = result


def play_experiment(
    experiment: Experiment,
    seed: int,
    url: str | None = None,
    processes: int = 1,
    progress: OnProgress = lambda _: None,
) -> RunResult:
    """Sends an experiment's requests to a box, which decides by its own policy.

    Args:
        experiment: What to play.
        seed: The seed.
        url: The box's address; None as in `Client`.
        processes: Number of sending processes.
        progress: As in `play_live`.

    Returns:
        The result. Its notes warn if the generator was late, requests failed, the policy was
        swapped or the box started again meanwhile, the box is gone, or answers came from its cache.

    Raises:
        LaxityError: The box can't be reached, or lacks a model of the workload.
        Interrupted: After some requests had ended, Ctrl-C was pressed, the source can't be read any
            further, or a sending process has died.
        FleetError, TraceError, WorkloadError: The source can't be read at all.
    """
    before = _status_of(url)
    result = RunResult(experiment.name, _policy_in(before), seed, experiment.load, "live")
    result.rows.limit = experiment.rows
    result.notes += experiment.fleet.notes
    tally = LiveTally()
    record = _Record(result, Accuracy(experiment.fleet.targets()), tally)
    arrivals = experiment.arrivals(seed)
    result.closed = isinstance(arrivals, Clients)
    try:
        play_live(
            url,
            arrivals,
            record.add,
            make_inputs=partial(random_inputs, needed=_models_of(experiment)),
            processes=processes,
            progress=progress,
            tally=tally,
        )
    except (KeyboardInterrupt, LaxityError, ValueError, OSError) as error:
        if not result.rows.seen:
            raise
        is_asked = isinstance(error, KeyboardInterrupt)
        what = "interrupted" if is_asked else "it broke off"
        result.notes.append(f"{what} when {result.rows.seen:,} requests had ended")
        record.close()
        raise Interrupted(result) from (None if is_asked else error)
    if (late := tally.warning()) is not None:
        result.notes.append(late)
    record.close()
    result.notes += _changes(before, url)
    return result


def _models_of(experiment: Experiment) -> list[str]:
    """The models that a workload is sure to request.

    Those of a journal are found only by reading it, as is which ones of several a trace names.
    """
    if not isinstance(experiment.source, WorkloadSource):
        return []
    found: dict[str, None] = {}
    for stream in experiment.source.workload.streams:
        models = dict.fromkeys(entry.model for entry in stream.mix.entries)
        if len(models) == 1 or not isinstance(stream, TraceStream):
            found |= models
    return list(found)


class _Record:
    """What is recorded of the requests of a run as they end, beside their tally."""

    def __init__(self, result: RunResult, accuracy: Accuracy, tally: LiveTally) -> None:
        self._result = result
        self._accuracy = accuracy
        self._tally = tally
        self._cached = 0
        self._failed: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def add(self, ending: LiveEnding) -> None:
        row = row_of(ending)
        self._result.add(row)
        self._accuracy.add(row)
        self._cached += ending.target in _CACHED
        if row.outcome not in _EXPECTED:
            self._failed[row.outcome] += 1
            self._reasons.setdefault(row.outcome, ending.reason)

    def close(self) -> None:
        """Adds to the result what is known only at the end."""
        seen = self._result.rows.seen
        self._result.accuracy_share = self._accuracy.share()
        if seen:
            quantiles_ns = (self._tally.lag_ns.quantile(share) or 0.0 for share in (0.5, 0.99, 1.0))
            self._result.send_lag = SendLag(*(ns / 1e6 for ns in quantiles_ns))
        for outcome, count in sorted(self._failed.items()):
            reason = self._reasons[outcome] or "nothing came back"
            self._result.notes.append(
                f"{count:,} of {seen:,} requests failed ({outcome}), the first because: {reason}"
            )
        if self._cached:
            self._result.notes.append(
                f"the box had the answers to {self._cached:,} of {seen:,} requests in its cache, "
                "because each model is always sent the same inputs; to measure the devices, remove "
                "`cache` from its configuration"
            )


def _changes(before: Mapping[str, Any], url: str | None) -> list[str]:
    """Notes on what has changed at the box since an earlier status."""
    policy = _policy_in(before)
    try:
        after = _status_of(url)
    except LaxityError as error:
        # The results up to here are valid all the same.
        return [f"the box was gone at the end: {error}"]
    notes = []
    if (now := _policy_in(after)) != policy:
        notes.append(f"the box's policy was swapped meanwhile, from {policy} to {now}")
    if after.get("pid") != before.get("pid"):
        notes.append(
            "the box's scheduler was started again meanwhile: what came while it was away "
            "counts as refused or expired"
        )
    elif now == policy and after.get("policy_swaps") != before.get("policy_swaps"):
        notes.append(f"the box's policy was swapped meanwhile, and then back to {policy}")
    return notes


def _status_of(url: str | None) -> Mapping[str, Any]:
    with Client(url, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        return client.status()


def _policy_in(status: Mapping[str, Any]) -> str:
    """A box's policy and its options, as `--policy` takes them."""
    policy = status.get("policy", {})
    options = [f"{key}={_text(value)}" for key, value in policy.items() if key != "name"]
    return "?".join(filter(None, (str(policy.get("name", "?")), "&".join(options))))


def _text(value: Any) -> str:
    """The value of an option; a policy without options is its name."""
    if not isinstance(value, Mapping):
        return "null" if value is None else str(value)
    if value.keys() == {"name"}:
        return str(value["name"])
    return f"{{{', '.join(f'{key}: {_text(each)}' for key, each in value.items())}}}"


def row_of(ending: LiveEnding) -> Row:
    """A live ending as a row of the results."""
    arrival = ending.arrival
    return Row(
        arrival.at_ns,
        arrival.kind.model,
        ending.variant or arrival.kind.variant,
        ending.target,
        arrival.priority,
        arrival.weight,
        arrival.budget_ns,
        ending.outcome or "none",
        ending.at_ns,
        ending.on_time,
    )

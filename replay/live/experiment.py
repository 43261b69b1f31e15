"""An experiment against a running box, with the same results as a simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.experiment import Experiment
from replay.live.endings import LiveEnding, OnProgress
from replay.live.replay import play_live
from replay.results import Row, RunResult
from replay.workloads import Clients
from scheduler import Client, LaxityError

CONNECT_TIMEOUT_S = 2.0

_CACHED = "cache", "cache (running)", "cache (near)"
"""The targets of answers from a box's cache, as they appear in `scheduler.Result.target`."""


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
        The result. Its notes warn if the generator was late, the policy was swapped or the
        box started again meanwhile, the box is gone, or answers came from its cache.

    Raises:
        LaxityError: The box can't be reached.
        Interrupted: After some requests had ended, Ctrl-C was pressed, the source can't be read any
            further, or a sending process has died.
        FleetError, TraceError, WorkloadError: The source can't be read at all.
    """
    before = _status_of(url)
    policy = _policy_in(before)
    result = RunResult(experiment.name, policy, seed, experiment.load, "live")
    result.rows.limit = experiment.rows
    result.notes += experiment.fleet.notes

    cached = 0

    def note(ending: LiveEnding) -> None:
        nonlocal cached
        cached += ending.target in _CACHED
        result.add(row_of(ending))

    arrivals = experiment.arrivals(seed)
    result.closed = isinstance(arrivals, Clients)
    try:
        tally = play_live(url, arrivals, note, processes=processes, progress=progress)
    except (KeyboardInterrupt, LaxityError, ValueError, OSError) as error:
        if not result.rows.seen:
            raise
        is_asked = isinstance(error, KeyboardInterrupt)
        what = "interrupted" if is_asked else "it broke off"
        result.notes.append(f"{what} when {result.rows.seen:,} requests had ended")
        raise Interrupted(result) from (None if is_asked else error)
    if (late := tally.warning()) is not None:
        result.notes.append(late)
    try:
        after = _status_of(url)
        if (now := _policy_in(after)) != policy:
            result.notes.append(f"the box's policy was swapped meanwhile, from {policy} to {now}")
        if after.get("pid") != before.get("pid"):
            result.notes.append(
                "the box's scheduler was started again meanwhile: what came while it was away "
                "counts as refused or expired"
            )
        elif now == policy and after.get("policy_swaps") != before.get("policy_swaps"):
            result.notes.append(
                f"the box's policy was swapped meanwhile, and then back to {policy}"
            )
    except LaxityError as error:
        # The results up to here are valid all the same.
        result.notes.append(f"the box was gone at the end: {error}")
    if cached:
        result.notes.append(
            f"the box had the answers to {cached:,} of {result.rows.seen:,} requests in its cache, "
            "because each model is always sent the same inputs; to measure the devices, remove "
            "`cache` from its configuration"
        )
    return result


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

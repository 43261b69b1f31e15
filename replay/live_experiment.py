"""An experiment against a running box, with the same results as a simulated one."""

from __future__ import annotations

from replay.experiment import Experiment
from replay.live import LiveEnding, play_live
from replay.results import Row, RunResult
from scheduler import Client

CONNECT_TIMEOUT_S = 2.0


def play_experiment(
    experiment: Experiment, seed: int, url: str | None = None, processes: int = 1
) -> tuple[RunResult, str | None]:
    """Sends an experiment's requests to a box, which decides by its own policy.

    Returns:
        What came of it, and what to say of a generator that was late itself.

    Raises:
        LaxityError: The box can't be reached.
        FleetError, TraceError, WorkloadError: The source can't be read.
    """
    with Client(url, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        policy = str(client.status().get("policy", {}).get("name", "?"))
    result = RunResult(experiment.name, policy, seed, experiment.load, "live")
    result.rows.limit = experiment.rows
    result.notes += experiment.fleet.notes

    def note(ending: LiveEnding) -> None:
        result.add(row_of(ending))

    arrivals = experiment.arrivals(seed)
    tally = play_live(url, arrivals, note, processes=processes)
    warning = tally.warning()
    if warning is not None:
        result.notes.append(warning)
    return result, warning


def row_of(ending: LiveEnding) -> Row:
    """A live ending as a row."""
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

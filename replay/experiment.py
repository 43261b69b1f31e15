"""An experiment: one workload on one fleet, played with several policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from replay.accuracy import Accuracy
from replay.bound import closest_bound
from replay.fleet.model import Fleet
from replay.headway import NoEnd, played
from replay.results import RunResult
from replay.simulator import Arrival, Ending, OnLook, OnRun, Simulator
from replay.sources import Source
from replay.watching import CalibrationTally, Timeline, row_of
from replay.witness import noted
from replay.workloads import Clients
from scheduler.core.commands import Dispatch
from scheduler.core.errors import PolicyFailed, meddled, place_of
from scheduler.core.limits import Limits
from scheduler.core.policy import Policy
from scheduler.core.requests import RequestClass
from scheduler.policy_loading import load_policy
from scheduler.yaml_loader import MALFORMED, load

STORY_ENTRIES = 2_000
"""Enough for a simulation to tell the story of an impossible decision, and no more."""

ROWS = 20_000
"""The most rows of a run that are kept; all requests are counted."""

BOUND_REQUESTS = 1_000_000
"""The bound of a longer workload is not computed."""

_CHANGED = (
    "{} changed while it was played: policies got {:,} to {:,} requests, so they can't be "
    "compared; play a copy of it"
)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by name, with its options, such as `goodput` or `goodput?quantile=0.99`.

    Attributes:
        label: The text that was given.
        name: As in the configuration; `module:Class` names a policy outside laxity.
        options: The policy's options.
    """

    label: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> PolicyChoice:
        """Parses a policy's name and options.

        Raises:
            ValueError: There is no such policy, or it can't be made with these options.
        """
        name, _, rest = text.partition("?")
        options: dict[str, Any] = {}
        for part in filter(None, rest.split("&")):
            key, sign, value = part.partition("=")
            if not sign:
                raise ValueError(f"policy {text!r}: an option is KEY=VALUE, not {part!r}")
            if key in options:
                raise ValueError(f"policy {text!r}: {key} is given twice")
            try:
                options[key] = load(value)
            except MALFORMED:
                raise ValueError(f"policy {text!r}: {key} has a value that can't be read") from None
        choice = cls(text, name, tuple(options.items()))
        with noted(f"policy {text!r} was made"):
            choice.make()
        return choice

    def make(self) -> Policy:
        """A new instance of the policy."""
        return load_policy(self.name, **dict(self.options))


class PolicyFault(ValueError):
    """A policy raised, made an impossible decision, or never finished; the message says where."""


class Played(NamedTuple):
    """The results of playing several policies.

    Attributes:
        results: Results of the policies that played to the end.
        faults: What went wrong with the others.
    """

    results: list[RunResult]
    faults: list[str]


class Stopped(KeyboardInterrupt):
    """Ctrl-C ended an experiment after some of its policies had been played.

    Attributes:
        played: What they gave.
    """

    def __init__(self, played: Played) -> None:
        super().__init__(played)  # so that it can leave the process that played them
        self.played = played


OnStep = Callable[[Callable[[], str]], None]
"""Called as each step of the work begins, with a function that says how it stands."""


def unseen(_says: Callable[[], str]) -> None:
    """An `OnStep` that nobody looks at."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A workload and the fleet it is played on.

    Attributes:
        name: The scenario's name.
        source: The requests.
        fleet: The targets.
        load: The load as a share of the fleet's capacity, if it was given that way.
        rows: How many requests of a run are kept.
        with_bound: Whether to compute the bound.
        at_once: As in `Simulator`.
    """

    name: str
    source: Source
    fleet: Fleet
    load: float | None = None
    rows: int = ROWS
    with_bound: bool = True
    at_once: bool = False

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests."""
        return self.source.arrivals(seed, self.fleet)

    def simulate(self, choice: PolicyChoice, seed: int, on_step: OnStep = unseen) -> RunResult:
        """Plays the workload with a policy.

        Args:
            choice: The policy.
            seed: The seed.
            on_step: As in `OnStep`.

        Raises:
            PolicyFault: The policy failed, or, while `replay.headway` watches, never finished.
        """
        fleet = self.fleet
        result = RunResult(self.name, choice.label, seed, self.load, notes=list(fleet.notes))
        result.rows.limit = self.rows
        on_step(lambda: f"{result.rows.seen:,} requests with {self._of(choice, seed)}")
        arrivals = self.arrivals(seed)
        result.closed = isinstance(arrivals, Clients)
        calibration, bill = CalibrationTally(fleet.targets(), fleet.events()), _Bill(fleet)
        accuracy = Accuracy(fleet.targets())
        timeline = Timeline()
        last_ns = 0

        def on_run(run: Dispatch, kind: RequestClass, begun_ns: int, done_ns: int) -> None:
            calibration.add(run, kind, begun_ns, done_ns)
            bill.add(run, begun_ns, done_ns)

        try:
            with noted(f"{self._who(choice, seed)} was played"):
                simulator = self._simulator(choice, seed, on_run, timeline.look)
                with played(simulator), _blamed(simulator, self._who(choice, seed)):
                    for ending in self._played(simulator, arrivals):
                        row = row_of(ending)
                        result.add(row)
                        accuracy.add(row)
                        timeline.note_rest()
                        last_ns = max(last_ns, ending.at_ns)
        except PolicyFailed as error:
            raise PolicyFault(f"{self._who(choice, seed)} failed: {error}") from error
        except NoEnd as no_end:
            raise PolicyFault(f"{self._who(choice, seed)} {no_end}{place_of(no_end)}") from None
        result.notes += [f"{self._case()}: {note}" for note in fleet.missed(last_ns)]
        result.timeline = timeline.samples
        result.calibration = calibration.points()
        result.cost, result.energy_j = bill.total, bill.energy_uj / 1e6
        result.accuracy_share = accuracy.share()
        return result

    def _case(self) -> str:
        return self.name if self.load is None else f"{self.name}, load {self.load:g}"

    def _who(self, choice: PolicyChoice, seed: int) -> str:
        return f"policy {self._of(choice, seed)}"

    def _of(self, choice: PolicyChoice, seed: int) -> str:
        return f"{choice.label!r} on {self._case()}, seed {seed}"

    def endings(self, choice: PolicyChoice, seed: int) -> Iterator[Ending]:
        """Plays the workload with a policy; yields each ending as it happens, and keeps none."""
        return self._played(self._simulator(choice, seed), self.arrivals(seed))

    def _played(self, simulator: Simulator, arrivals: Iterator[Arrival]) -> Iterator[Ending]:
        if isinstance(arrivals, Clients):
            return simulator.serve(arrivals)
        return simulator.run(arrivals)

    def _simulator(
        self,
        choice: PolicyChoice,
        seed: int,
        on_run: OnRun | None = None,
        on_look: OnLook | None = None,
    ) -> Simulator:
        fleet = self.fleet
        simulator = Simulator(
            choice.make(),
            fleet.targets(),
            fleet.service_time(seed),
            Limits(story_entries=STORY_ENTRIES),
            world=fleet.world(seed),
            on_run=on_run,
            at_once=self.at_once,
            on_look=on_look,
        )
        for at_ns, event in fleet.events():
            simulator.at(at_ns, event)
        return simulator

    def bound(self, seed: int) -> float:
        """The share of the weight that a clairvoyant could finish."""
        fleet = self.fleet
        return closest_bound(
            lambda: self.arrivals(seed),
            fleet.targets(),
            fleet.conditions(seed),
            fleet.true_times(seed),
        )

    def run(self, choices: Sequence[PolicyChoice], seed: int) -> list[RunResult]:
        """Plays the same requests with each policy.

        Raises:
            PolicyFault: As in `simulate`.
        """
        results, faults = self.play(choices, seed)
        if faults:
            raise PolicyFault(faults[0])
        return results

    def play(self, choices: Sequence[PolicyChoice], seed: int, on_step: OnStep = unseen) -> Played:
        """As `run`, but the other policies go on after a fault, and their results note it.

        Raises:
            Stopped: Ctrl-C was pressed after a policy had been played.
        """
        played = Played([], [])
        try:
            self._play(played, choices, seed, on_step)
        except KeyboardInterrupt:
            if not played.results:
                raise
            done = len(played.results) + len(played.faults)
            when = f"after {done} of {len(choices)} policies"
            if done == len(choices):
                when = "before its bound was known"
            played.results[-1].notes.append(f"{self._case()}, seed {seed}, was stopped {when}")
            raise Stopped(played) from None
        return played

    def _play(
        self, played: Played, choices: Sequence[PolicyChoice], seed: int, on_step: OnStep
    ) -> None:
        results, faults = played
        for choice in choices:
            try:
                results.append(self.simulate(choice, seed, on_step))
            except PolicyFault as fault:
                faults.append(str(fault))
        bounded = [each for each in results if not each.closed]
        asked = sorted({each.rows.seen for each in bounded})
        changed = [_CHANGED.format(self.name, asked[0], asked[-1])] if len(asked) > 1 else []
        if self.with_bound and bounded and bounded[0].rows.seen <= BOUND_REQUESTS:
            # If a policy served all of the weight, the bound is 1; computing it takes seconds.
            kept_all = any(result.on_time_share() == 1 for result in results)
            on_step(lambda: f"the bound of {self._case()}, seed {seed}")
            bound = 1.0 if kept_all else self.bound(seed)
            for result in results:
                result.bound = bound
        for result in results:
            result.notes += faults + changed


@contextmanager
def _blamed(simulator: Simulator, who: str) -> Iterator[None]:
    """Raises `PolicyFault` in place of an error if the scheduler's state contradicts itself.

    A policy can cause that, since the view that it is given is the state itself.
    """
    try:
        yield
    except Exception as error:
        told = meddled(error, simulator.scheduler.validate)
        if told is not None:
            raise PolicyFault(f"{who} failed: {told}") from error
        raise


class _Bill:
    """The cost of batches, and their energy where the fleet states it."""

    def __init__(self, fleet: Fleet) -> None:
        self.total = 0.0
        self.energy_uj = 0.0
        self._offers = {
            (spec.id, offer.model, offer.variant): (spec, offer)
            for spec in fleet.targets()
            for offer in spec.offers
            if spec.is_paid or offer.energy_uj
        }

    def add(self, run: Dispatch, begun_ns: int, done_ns: int) -> None:
        found = self._offers.get((run.target_id, run.model, run.variant))
        if found is not None:
            spec, offer = found
            requests = len(run.request_ids)
            energy_uj = offer.energy(requests)
            self.energy_uj += energy_uj
            self.total += spec.cost(requests, done_ns - begun_ns, energy_uj)

"""A policy of one's own on trial: the conformance suite, and a few scenarios beside others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from replay.conformance import Verdict, conformance
from replay.experiment import PolicyChoice, PolicyFault
from replay.laws import MakePolicy
from replay.results import RunResult
from replay.scenarios import standard_scenarios
from replay.witness import noted, witnessed
from scheduler.core.policy import Policy

SCENARIOS = ("load-0_8", "load-1_5", "burst-cv4", "deadline-1_5x", "device-dies", "mixed-worth")
"""The standard scenarios that tell policies apart most."""

BESIDE = ("goodput", "edf", "fcfs")
"""What a policy is compared with."""

REQUESTS = 1_500
"""Of each scenario, so that a trial takes seconds."""


@dataclass(frozen=True, slots=True)
class _Own(PolicyChoice):
    """A policy that is made by a function instead of a name."""

    factory: MakePolicy | None = None

    def make(self) -> Policy:
        """A new one."""
        return self.factory() if self.factory else PolicyChoice.make(self)


@contextmanager
def told_of(text: str) -> Iterator[None]:
    """Has stderr say so, should the policy of this name end the process inside."""
    with witnessed(), noted(f"policy {text!r} was tried"):
        yield


def read_policy(text: str) -> MakePolicy:
    """What makes a policy that is named as for a replay: with its options behind a `?`.

    Raises:
        ValueError: There is no such policy, or it can't be made with these options.
    """
    return PolicyChoice.parse(text).make


def try_policy(make: MakePolicy) -> Iterator[Verdict]:
    """The conformance suite, check by check.

    Args:
        make: Makes a new instance of the policy.
    """
    return conformance(make)


def did_not_play(scenario: str, fault: PolicyFault) -> Verdict:
    """What a policy that failed in a scenario has to answer for, beside the suite."""
    return Verdict(f"plays {scenario}", "It decides until all requests have ended.", str(fault))


def play_policy(
    label: str, make: MakePolicy, scenario: str, requests: int = REQUESTS, seed: int = 1
) -> list[tuple[RunResult, float]]:
    """Plays a standard scenario with a policy, and with those that it is compared with.

    With each result comes how many microseconds of this machine a request took, the simulator's
    part included: on the virtual clock decisions take no time at all.

    Args:
        label: What to call the policy.
        make: Makes a new instance of it.
        scenario: The name of a standard scenario.
        requests: How many of its requests are played at most.
        seed: Of chance.

    Raises:
        PolicyFault: It raised there, or decided the impossible.
    """
    (found,) = standard_scenarios(scenario)
    experiment = found.experiment(requests=requests)
    choices = [_Own(label, label, (), make), *(PolicyChoice(name, name) for name in BESIDE)]
    played = []
    for choice in choices:
        begun_ns = time.perf_counter_ns()
        result = experiment.simulate(choice, seed)
        took_us = (time.perf_counter_ns() - begun_ns) / 1e3
        played.append((result, took_us / result.rows.seen))
    return played

"""Tries a user's policy: the conformance suite, and a few scenarios next to other policies."""

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
"""The standard scenarios in which policies differ most."""

BESIDE = ("goodput", "edf", "fcfs")
"""The policies to compare with."""

REQUESTS = 1_500
"""The number of requests per scenario, so that a trial takes seconds."""


@dataclass(frozen=True, slots=True)
class _Own(PolicyChoice):
    """A policy made by a function instead of by name."""

    factory: MakePolicy | None = None

    def make(self) -> Policy:
        """A new instance of the policy."""
        return self.factory() if self.factory else PolicyChoice.make(self)


@contextmanager
def told_of(text: str) -> Iterator[None]:
    """Reports the policy's name on stderr if it ends the process inside."""
    with witnessed(), noted(f"policy {text!r} was tried"):
        yield


def read_policy(text: str) -> MakePolicy:
    """The factory of a policy named as for a replay, with options after a `?`.

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
    """The verdict on a policy that failed in a scenario, in the form of a check of the suite."""
    return Verdict(f"plays {scenario}", "It decides until all requests have ended.", str(fault))


def play_policy(label: str, make: MakePolicy, scenario: str) -> list[tuple[RunResult, float]]:
    """Plays a standard scenario with a policy, and with the policies in `BESIDE`.

    Each result comes with the microseconds of real time per request on this machine, including the
    simulator's own. On the virtual clock, decisions take no time.

    Args:
        label: What to call the policy.
        make: Makes a new instance of it.
        scenario: The name of a standard scenario.

    Raises:
        PolicyFault: The policy raised, or made an impossible decision.
    """
    (found,) = standard_scenarios(scenario)
    experiment = found.experiment(requests=REQUESTS)
    choices = [_Own(label, label, (), make), *(PolicyChoice(name, name) for name in BESIDE)]
    played = []
    for choice in choices:
        begun_ns = time.perf_counter_ns()
        result = experiment.simulate(choice, 1)
        took_us = (time.perf_counter_ns() - begun_ns) / 1e3
        played.append((result, took_us / result.rows.seen))
    return played

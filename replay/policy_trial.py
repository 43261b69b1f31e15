"""Plays a user's policy in a few scenarios, next to other policies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from replay.conformance import Verdict
from replay.experiment import PolicyChoice, PolicyFault
from replay.results import RunResult
from replay.scenarios import standard_scenarios
from replay.witness import noted, witnessed

SCENARIOS = ("load-0_8", "load-1_5", "burst-cv4", "deadline-1_5x", "device-dies", "mixed-worth")
"""The standard scenarios in which policies differ most."""

BESIDE = ("goodput", "edf", "fcfs")
"""The policies to compare with."""

REQUESTS = 1_500
"""The number of requests per scenario, so that a trial takes seconds."""


@contextmanager
def told_of(text: str) -> Iterator[None]:
    """Reports the policy's name on stderr if it ends the process inside."""
    with witnessed(), noted(f"policy {text!r} was tried"):
        yield


def did_not_play(scenario: str, fault: PolicyFault) -> Verdict:
    """The verdict on a policy that failed in a scenario, in the form of a check of the suite."""
    return Verdict(f"plays {scenario}", "It decides until all requests have ended.", str(fault))


def play_policy(own: PolicyChoice, scenario: str) -> list[tuple[RunResult, float]]:
    """Plays a standard scenario with a policy, and with the policies in `BESIDE`.

    Each result comes with the microseconds of real time per request on this machine, including the
    simulator's own. On the virtual clock, decisions take no time.

    Args:
        own: The policy.
        scenario: The name of a standard scenario.

    Raises:
        PolicyFault: The policy raised, or made an impossible decision.
    """
    (found,) = standard_scenarios(scenario)
    experiment = found.experiment(requests=REQUESTS)
    choices = [own, *(PolicyChoice(name, name) for name in BESIDE)]
    played = []
    for choice in choices:
        begun_ns = time.perf_counter_ns()
        result = experiment.simulate(choice, 1)
        took_us = (time.perf_counter_ns() - begun_ns) / 1e3
        played.append((result, took_us / result.rows.seen))
    return played

"""Scenarios, standard and made for a test, and how a policy does in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from replay.experiment import Experiment, PolicyChoice
from replay.results import RunResult
from replay.scenarios import FOLDER, load_scenario
from replay.simulator import Ending


def standard(name: str, requests: int) -> Experiment:
    """A standard scenario with so many requests."""
    return load_scenario(FOLDER / f"{name}.yaml").experiment(requests)


def written(folder: Path, text: str) -> Experiment:
    """A scenario of a test's own, written into a folder of its own."""
    file = folder / "scenario.yaml"
    file.write_text(text)
    return load_scenario(file).experiment()


def play(experiment: Experiment, policy: str = "goodput", seed: int = 1) -> RunResult:
    """How one policy did, by name and options as on the command line."""
    return experiment.simulate(PolicyChoice.parse(policy), seed)


def on_time(
    experiment: Experiment, policy: str = "goodput", *, seeds: Sequence[int] = (1,)
) -> float:
    """The share of the weight that was in time, on average over these seeds."""
    return fmean(play(experiment, policy, seed).on_time_share() for seed in seeds)


def endings(experiment: Experiment, policy: str = "goodput") -> Iterator[Ending]:
    """How each request ended."""
    return experiment.endings(PolicyChoice.parse(policy), 1)

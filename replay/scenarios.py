"""Scenarios: a fleet and a workload in one file; the standard ones are in `configs/scenarios`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import configs
from replay.experiment import Experiment
from replay.fleet.file import parse_fleet, read_fleet
from replay.fleet.model import Fleet
from replay.sources import WorkloadSource, load_of
from replay.workloads import Workload, parse_workload
from scheduler.config.problems import ConfigError, problems_of, read_yaml_file
from scheduler.core.names import did_you_mean

FOLDER = Path(configs.__file__).parent / "scenarios"
"""The folder of the standard scenarios."""


class ScenarioError(ValueError):
    """There is no such scenario; the message names the closest match."""


class _ScenarioFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = Field(min_length=1)
    fleet: str | dict[str, Any]
    workload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet and a workload.

    Attributes:
        name: The file's name without its suffix.
        about: Its purpose, in a sentence.
        fleet: The targets.
        workload: The requests.
    """

    name: str
    about: str
    fleet: Fleet
    workload: Workload

    def experiment(self, requests: int | None = None, load: float | None = None) -> Experiment:
        """The experiment to play.

        Args:
            requests: Replaces the workload's number of requests.
            load: Replaces the workload's load.

        Raises:
            WorkloadError: The load of this workload can't be set.
        """
        workload = self.workload
        if requests is not None:
            workload = replace(workload, requests=requests)
        if load is not None:
            workload = workload.with_load(load)
        return Experiment(self.name, WorkloadSource(workload), self.fleet, load_of(workload))


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario; relative paths in it start from its folder.

    Raises:
        ConfigError: Lists every mistake in the file, with its line and what would be accepted.
        FleetError: Its fleet can't be used.
        WorkloadError: Its workload can't be used.
        TraceError: A trace that it names can't be read.
    """
    data, node = read_yaml_file(path)
    try:
        file = _ScenarioFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(str(path), problems_of(error, _ScenarioFile, node)) from None
    if isinstance(file.fleet, str):
        fleet = read_fleet(path.parent / file.fleet)
    else:
        fleet = parse_fleet(file.fleet, _value(node, "fleet"), str(path), path.parent, "fleet")
    workload = parse_workload(file.workload, f"{path}: workload", path.parent)
    return Scenario(path.stem, file.about, fleet, workload)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                found: yaml.Node = value
                return found
    return None


def scenario_names(only: str = "*") -> list[str]:
    """The names of the standard scenarios that match a pattern.

    Raises:
        ScenarioError: No name matches.
    """
    every = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    names = [name for name in every if fnmatchcase(name, only)]
    if not names:
        raise ScenarioError(f"no scenario fits {only!r}; {did_you_mean(only, every, cutoff=0.4)}")
    return names


def standard_scenarios(only: str = "*") -> list[Scenario]:
    """The standard scenarios whose names match a pattern, in order; errors as in `load_scenario`.

    Raises:
        ScenarioError: No name matches.
    """
    return [load_scenario(FOLDER / f"{name}.yaml") for name in scenario_names(only)]

"""Inputs and results of the checks of `laxity doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

from scheduler.config.box import Config

Level = Literal["good", "warning", "error"]

NO_START = "with this the box does not start"
"""The end of a remedy for what keeps a box from starting."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check.

    Attributes:
        check: The check's name.
        level: How serious it is.
        message: What was found.
        remedy: What would be right; empty if nothing is wrong.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment that the checks examine.

    Attributes:
        config: The box's configuration.
        installed: The distributions of this environment.
        root: The folder that contains `/proc` and `/sys`.
        file: The file of the configuration; None if all settings are defaults.
    """

    config: Config
    installed: tuple[Distribution, ...]
    root: Path = Path("/")
    file: Path | None = None


Check = Callable[[Surroundings], Iterable[Finding]]

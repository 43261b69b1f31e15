"""What the checks of `laxity doctor` look at and say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

from scheduler.config.box import Config

Level = Literal["good", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw.

    Attributes:
        check: The check's name.
        level: Whether it matters.
        message: What there is.
        remedy: What would be right; empty where it is.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks look at.

    Attributes:
        config: The box's configuration.
        installed: The distributions of this environment.
        root: Where `/proc` and `/sys` are found.
        file: Where the configuration was read from; None where every default is meant.
    """

    config: Config
    installed: tuple[Distribution, ...]
    root: Path = Path("/")
    file: Path | None = None


Check = Callable[[Surroundings], Iterable[Finding]]

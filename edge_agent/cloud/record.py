"""What `laxity cloud` remembers of what it has started."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from scheduler.files import replace_file


@dataclass(frozen=True)
class Record:
    """An application that is up, or coming up.

    Attributes:
        name: The application's, in Ray Serve.
        http: Where it is reached.
        ray_address: Of the cluster that hosts it.
        own_ray: Whether that cluster is there for it alone.
        pid: The process that ends it; None where that has left it on another's cluster.
        started_s: When that process began, to tell it from a later one with its number.
        started_serve: Whether Ray Serve did not run on that cluster before.
        ready: Whether it serves.
    """

    name: str
    http: str
    ray_address: str
    own_ray: bool
    pid: int | None
    started_s: float
    started_serve: bool
    ready: bool = False

    def write(self, state_dir: Path) -> None:
        """Leaves it for other commands to read."""
        replace_file(record_file(state_dir), json.dumps(asdict(self), indent=1))

    def process(self) -> psutil.Process | None:
        """The process that ends it; None where there is none, or no more."""
        if self.pid is None:
            return None
        try:
            process = psutil.Process(self.pid)
            return process if process.create_time() == self.started_s else None
        except psutil.NoSuchProcess:
            return None


def record_file(state_dir: Path) -> Path:
    """Where it is remembered."""
    return state_dir / "cloud.json"


def read_record(state_dir: Path) -> Record | None:
    """What was left there; None where nothing is up."""
    try:
        record = Record(**json.loads(record_file(state_dir).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # none, or what a lost write has left
        return None
    return record if record.pid is None or record.process() is not None else None


def forget_record(state_dir: Path) -> None:
    """It is up no more."""
    record_file(state_dir).unlink(missing_ok=True)

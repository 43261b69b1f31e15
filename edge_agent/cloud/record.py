"""The record that `laxity cloud` keeps of the application it has started."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from scheduler.files import replace_file
from workers.kernel_files import standing


@dataclass(frozen=True)
class Record:
    """An application that is up or starting.

    Attributes:
        name: The application's name in Ray Serve.
        http: Its HTTP address.
        ray_address: The address of the cluster that hosts it.
        own_ray: Whether that cluster belongs to it alone.
        pid: The process that can end it; None if that has left it on another's cluster.
        started_ticks: When that process started, as in `Standing`, to tell it from a later one with
            the same id; None without a process.
        started_serve: Whether it started Ray Serve on that cluster.
        ready: Whether it serves.
    """

    name: str
    http: str
    ray_address: str
    own_ray: bool
    pid: int | None
    started_ticks: int | None
    started_serve: bool
    ready: bool = False

    def write(self, state_dir: Path) -> None:
        """Write the record for other commands to read."""
        replace_file(record_file(state_dir), json.dumps(asdict(self), indent=1))

    def process(self) -> psutil.Process | None:
        """The process that can end it; None if there is none any more."""
        if self.pid is None:
            return None
        stands = standing(self.pid)
        if stands is None or stands.started_ticks != self.started_ticks:
            return None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid)
        return None


def record_file(state_dir: Path) -> Path:
    """The path of the record."""
    return state_dir / "cloud.json"


def read_record(state_dir: Path) -> Record | None:
    """Read the record; None if no application is up."""
    try:
        record = Record(**json.loads(record_file(state_dir).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # absent, or damaged by an incomplete write
        return None
    return record if record.pid is None or record.process() is not None else None


def forget_record(state_dir: Path) -> None:
    """Delete the record."""
    record_file(state_dir).unlink(missing_ok=True)

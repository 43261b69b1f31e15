"""`laxity cloud` as a user runs it, on a Ray cluster of its own."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.ports import free_port
from scheduler.tenants import new_token
from tests.e2e.running_agent import kill_all, marked, processes_of


class RunningCloud:
    """An application of `laxity cloud`, with a token to come in.

    Args:
        folder: For its configuration, token and state.
        models: The model repository.
        limits: What each replica holds at most.
        settings: More keys of the configuration.

    Attributes:
        run: Marks its processes, for `processes_of`.
    """

    def __init__(self, folder: Path, models: Path, limits: dict[str, int], **settings: Any) -> None:
        self.port = free_port()
        self.folder = folder
        self.renew_token()
        self.config = folder / "cloud.yaml"
        self.state_dir = folder / "state"
        settings = {
            **settings,
            "http": f"127.0.0.1:{self.port}",
            "models": str(models),
            "state_dir": "state",
            "token_file": "token",
            "devices": [{"id": "cpu:0", "cpus": 0.5, "runtimes": ["onnxruntime"]}],
            "replicas": {"max": 1, "cpus": 0.5},
            "limits": limits,
            "profile": {"seconds": 0.3},
        }
        self.config.write_text(yaml.safe_dump(settings))
        self.run = uuid.uuid4().hex

    def renew_token(self) -> None:
        """Puts another token in place of the one that was good, by a link as Kubernetes does."""
        self.token = new_token()
        data = self.folder / uuid.uuid4().hex
        data.mkdir()
        (data / "token").touch(0o600)
        (data / "token").write_text(self.token)
        fresh = self.folder / "fresh"
        fresh.symlink_to(data.name)
        fresh.replace(self.folder / "..data")
        if not (self.folder / "token").is_symlink():
            (self.folder / "token").symlink_to("..data/token")

    def laxity(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs `laxity cloud COMMAND`."""
        program = [sys.executable, "-m", "scheduler.cli", "cloud", command]
        return subprocess.run(
            [*program, "--config", str(self.config), *options],
            env=marked(self.run),
            capture_output=True,
            text=True,
            timeout=240,
        )

    def processes(self) -> list[psutil.Process]:
        """All that it started and that still runs."""
        return processes_of(self.run)

    def close(self) -> None:
        """Ends whatever is left, whatever happened."""
        kill_all(self.run)

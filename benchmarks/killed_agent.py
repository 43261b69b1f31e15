"""A real agent with one slow model, killed at random: its scheduler, its worker, or all of it."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.running_agent import RunningAgent
from tests.workers.onnx_models import save, slow

START_S = 300.0
"""How long an agent may take to start, as it may share its cores with much other work."""

_SHARES = {"scheduler": 0.75, "worker": 0.15, "agent": 0.1}
_ACTORS = {"scheduler": "SchedulerProcess", "worker": "WorkerProcess"}


class KilledAgent:
    """An `edge_agent` with Ray, doors, journal and a CPU that runs a model; implements `Victim`.

    Args:
        folder: The folder for its models, configuration, socket and state.

    Attributes:
        model: A model that returns its input after some milliseconds of matrix products.
        url: The URL of its native door.
    """

    model = "slow"

    def __init__(self, folder: Path) -> None:
        """Write the model; nothing is started yet."""
        self.url = f"unix://{folder}/s.sock"
        self._folder = folder
        self._agent: RunningAgent | None = None
        self._chance = random.Random(3)
        self._killed: Counter[str] = Counter()
        save(slow(256, 8), folder / "models/slow/model.onnx")
        # Only a runtime that computes in float32, because each task's result is checked.
        (folder / "models/slow/model.yaml").write_text(
            "variants: {only: {file: model.onnx}}\nruntimes: [onnxruntime]\nmax_batch: 4\n"
        )

    def inputs(self, number: int) -> dict[str, Any]:
        """The inputs of a task."""
        return {"x": np.full((1, 1), number, np.float32)}

    def is_right(self, number: int, outputs: Any) -> bool:
        """Whether a task's result is right."""
        return bool(outputs["y"] == number)

    def start(self) -> None:
        """Start the agent if all of it was killed; Ray restarts single actors."""
        if self._agent is None:
            models = self._folder / "models"
            self._agent = RunningAgent(self._folder, models, patience_s=START_S)

    def kill(self) -> None:
        """Kill one of its actors, or all of its processes."""
        assert self._agent is not None
        (what,) = self._chance.choices(list(_SHARES), list(_SHARES.values()))
        self._killed[what] += 1
        if what == "agent":
            self._agent.close()
            self._agent = None
            return
        os.kill(self._agent.pid_of(_ACTORS[what]), signal.SIGKILL)

    def drain(self) -> None:
        """End the agent in the orderly way."""
        assert self._agent is not None
        if (status := self._agent.stop()) != 0 or self._agent.left_over():
            raise RuntimeError(f"the agent ended with {status}, or left processes behind")

    def close(self) -> None:
        """Kill what is left."""
        if self._agent is not None:
            self._agent.close()

    def figures(self) -> dict[str, Any]:
        """How often each part was killed."""
        return {"killed": dict(self._killed)}

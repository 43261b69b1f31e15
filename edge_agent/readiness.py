"""Wait for devices until they serve or have failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError

from edge_agent.errors import AgentError, cause_of

_LOOK_S = 0.1
"""How often progress is polled while devices get ready; nothing else waits for it."""


class Readiness:
    """The progress of a scheduler's devices.

    Args:
        scheduler: The scheduler's actor.
        workers: The devices' actors, by id.
    """

    def __init__(self, scheduler: Any, workers: Mapping[str, Any]) -> None:
        """Ask each worker to answer."""
        self._scheduler = scheduler
        self._workers = workers
        self._asked = {device: worker.describe.remote() for device, worker in workers.items()}
        self._failed: dict[str, str] = {}

    def wait(
        self,
        progress: Callable[[list[dict[str, Any]]], None] = lambda _targets: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, str]:
        """Wait until every device is ready or failed; return the failed ones with the reason.

        Args:
            progress: Called repeatedly with the devices among the targets of `status`.
            stop: Returns whether to stop waiting.

        Raises:
            AgentError: No device can be used, or the scheduler died.
        """
        while True:
            failed = self._failures()
            if len(failed) == len(self._workers):
                reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
                raise AgentError(f"no device can be used: {reasons}")
            try:
                targets = ray.get(self._scheduler.status.remote())["targets"]
            except RayActorError as error:
                raise AgentError(cause_of(error)) from None
            # Targets beyond the box come and go at any time.
            own = [target for target in targets if target["id"] in self._workers]
            progress(own)
            if stop() or all(t["progress"]["text"] == "ready" or t["id"] in failed for t in own):
                return failed
            time.sleep(_LOOK_S)

    def _failures(self) -> dict[str, str]:
        """The devices whose workers can't start, with the reason."""
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
        for device in [device for device, asked in self._asked.items() if asked in ready]:
            try:
                ray.get(self._asked[device])
                self._failed.pop(device, None)
            except RayActorError as error:
                reason = cause_of(error)
                if self._failed.get(device) != reason:
                    self._failed[device] = reason
                    self._scheduler.give_up.remote(device, reason)
            self._asked[device] = self._workers[device].describe.remote()
        return dict(self._failed)

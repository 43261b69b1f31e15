"""Measure how much a box's devices slow each other down by sharing cores or memory bandwidth."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.exceptions import RayActorError

from scheduler.files import replace_file

MEASURE_S = 0.5
"""How long each device is measured, alone and beside each other device, in seconds."""

_LEAD_S = 0.3
"""How much longer the other device is kept busy, to cover the whole measurement, in seconds."""


def measure_in_background(workers: Mapping[str, Any], path: Path) -> None:
    """Tell each device how much the others slow it down; measured once per set of devices.

    Args:
        workers: The actors of devices that are not emulated, by device id.
        path: The file for the measurement.
    """
    if len(workers) < 2:
        return

    def measure() -> None:
        with contextlib.suppress(RayActorError):  # a worker died, or the agent is stopping
            _tell_slowdown(workers, path)

    threading.Thread(target=measure, daemon=True, name="laxity-contention").start()


def _tell_slowdown(workers: Mapping[str, Any], path: Path) -> None:
    told = {name: ray.get(worker.describe.remote()) for name, worker in workers.items()}
    devices = {name: about["device"] for name, about in told.items()}
    slowdown = load_slowdown(path, devices)
    if slowdown is None:
        slowdown = measure_slowdown(
            list(workers),
            lambda name, seconds: ray.get(workers[name].typical_ns.remote(seconds)),
            lambda name, seconds: partial(ray.get, workers[name].occupy.remote(seconds)),
        )
        with contextlib.suppress(OSError):  # for example a full disk: the next start measures again
            store_slowdown(path, devices, slowdown)
    for name, others in slowdown.items():
        ray.get(workers[name].learn_contention.remote(others))


def measure_slowdown(
    devices: list[str],
    typical_ns: Callable[[str, float], dict[str, int]],
    occupy: Callable[[str, float], Callable[[], Any]],
) -> dict[str, dict[str, float]]:
    """Measure every device alone, and beside each other device while that is busy.

    Args:
        devices: The devices' ids.
        typical_ns: Given a device and seconds, returns the median time of an item by variant.
        occupy: Keeps a device busy for some seconds; returns a function that waits for the end.

    Returns:
        By device and other device, the factor by which a run of the first takes longer while the
        second is busy: the median over its variants, where 1 means no contention.
    """
    found: dict[str, dict[str, float]] = {}
    for device in devices:
        alone = typical_ns(device, MEASURE_S)
        for other in devices:
            if other == device:
                continue
            wait = occupy(other, MEASURE_S + _LEAD_S)
            beside = typical_ns(device, MEASURE_S)
            wait()
            ratios = [beside[name] / alone[name] for name in alone if name in beside]
            if ratios:
                found.setdefault(device, {})[other] = round(median(ratios), 3)
    return found


def load_slowdown(path: Path, devices: Mapping[str, str]) -> dict[str, dict[str, float]] | None:
    """The stored measurement of the same devices, or None.

    If a device served nothing then, because it had no models yet, all are measured again.

    Args:
        path: The file that `store_slowdown` writes.
        devices: By id, a description of each device and its runtimes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Absent at the first start; a damaged file is replaced by a new measurement.
        return None
    if not isinstance(content, dict) or content.get("devices") != dict(devices):
        return None
    slowdown = content.get("slowdown")
    return slowdown if isinstance(slowdown, dict) and slowdown.keys() == devices.keys() else None


def store_slowdown(
    path: Path, devices: Mapping[str, str], slowdown: Mapping[str, Mapping[str, float]]
) -> None:
    """Keep a measurement for the next start."""
    content = {"devices": dict(devices), "slowdown": {k: dict(v) for k, v in slowdown.items()}}
    replace_file(path, json.dumps(content, indent=1))

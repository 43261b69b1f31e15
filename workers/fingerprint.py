"""Fingerprint of what a measured latency depends on besides the model."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import xxhash

from workers.kernel_files import field_of, text_of
from workers.runtimes.base import DeviceSpec, Runtime

Fingerprint = dict[str, str]


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The part of a device's state that its speed depends on.

    Attributes:
        power: Its power mode, or `unknown`.
        throttled: Why heat slows it down, or `no`.
    """

    power: str
    throttled: str


def fingerprint(
    device: DeviceSpec, runtime: Runtime, state: DeviceState, root: Path = Path("/")
) -> Fingerprint:
    """Describe a device and runtime, so that a profile is used only where it is valid.

    Args:
        device: The device; its cores are included, its id is not.
        runtime: An installed runtime.
        state: The device's current state.
        root: Where `/proc` and `/sys` are found.
    """
    return {
        "kind": device.kind,
        "processor": runtime.processor(device) or processor_name(root),
        "cores": ",".join(map(str, device.cores)) or "any",
        "runtime": f"{runtime.name} {runtime.version()}",
        "power": state.power,
        "throttled": state.throttled,
        "options": json.dumps(dict(device.options), sort_keys=True, default=str),
    }


def fingerprint_id(of: Fingerprint) -> str:
    """A short name for a fingerprint, safe in a file name."""
    return xxhash.xxh3_64(json.dumps(of, sort_keys=True).encode()).hexdigest()


def processor_name(root: Path = Path("/")) -> str:
    """The CPU's model name, or the board's where the kernel names no CPU (ARM)."""
    named = field_of(root / "proc/cpuinfo", "model name")
    if named is not None:
        return named
    board = text_of(root / "proc/device-tree/model")
    return board or platform.processor() or platform.machine()

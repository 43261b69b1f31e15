"""What a measured latency depends on besides the model: the device and how it is set."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import xxhash

from workers.runtimes.base import DeviceSpec, Runtime

Fingerprint = dict[str, str]


def fingerprint(device: DeviceSpec, runtime: Runtime, root: Path = Path("/")) -> Fingerprint:
    """Describe a device and runtime, so that a profile is used only where it was measured.

    Args:
        device: The device; its cores count, its id does not.
        runtime: A runtime that is not missing.
        root: Where `/proc` and `/sys` are found.
    """
    return {
        "kind": device.kind,
        "processor": runtime.processor(device) or processor_name(root),
        "cores": ",".join(map(str, device.cores)) or "any",
        "runtime": f"{runtime.name} {runtime.version()}",
        "power": power_mode(device, root),
        "options": json.dumps(dict(device.options), sort_keys=True, default=str),
    }


def fingerprint_id(of: Fingerprint) -> str:
    """A short name for a fingerprint, safe in a file name."""
    return xxhash.xxh3_64(json.dumps(of, sort_keys=True).encode()).hexdigest()


def processor_name(root: Path = Path("/")) -> str:
    """The CPU's model name, or the board's where the kernel gives no CPU name (ARM)."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    board = _read(root / "proc/device-tree/model").strip("\x00 \n")
    return board or platform.processor() or platform.machine()


def power_mode(device: DeviceSpec, root: Path = Path("/")) -> str:
    """The cores' frequency governors and a Jetson's power model, or `unknown`."""
    cpus = root / "sys/devices/system/cpu"
    cores = device.cores or (0,)
    governors = {_read(cpus / f"cpu{core}/cpufreq/scaling_governor").strip() for core in cores}
    nvpmodel = _read(root / "var/lib/nvpmodel/status").strip()
    return " ".join(sorted(filter(None, {*governors, nvpmodel}))) or "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Which of these files exist differs from box to box.
        return ""

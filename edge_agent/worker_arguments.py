"""Turn a box's configuration into the arguments of a device's worker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from scheduler.device_specs import device_spec
from workers.profiling import Effort, batch_ladder
from workers.runtimes.base import DeviceSpec

WorkerArguments = tuple[DeviceSpec, Path, Path, Path, int, Effort]


def worker_arguments(config: Config, device: DeviceConfig, link: Path) -> WorkerArguments:
    """The arguments of a `WorkerProcess`.

    Args:
        config: The box's configuration.
        device: The worker's device.
        link: The unix socket to which the scheduler connects.
    """
    profile = config.profile
    rungs = len(list(batch_ladder(profile.max_batch)))
    seconds_ns = int(profile.seconds * 1e9)
    # Who gives much time may have models that take long.
    longest_ns = max(Effort().longest_ns, seconds_ns // 2)
    # A busy box needs longer than planned, but must not take for ever.
    effort = Effort(seconds_ns // rungs, total_ns=2 * seconds_ns, longest_ns=longest_ns)
    folders = config.models, config.state_dir, link
    return device_spec(device), *folders, profile.max_batch, effort


def link_paths(devices: Iterable[DeviceConfig], folder: Path) -> dict[str, Path]:
    """The unix socket of each device's worker, in a folder, by the device's id."""
    return {device.id: folder / f"{device_spec(device).file_name}.sock" for device in devices}

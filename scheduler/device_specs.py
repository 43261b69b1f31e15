"""The devices of a configuration in the form that their workers take, and mistakes in them."""

from __future__ import annotations

from pathlib import Path

from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from scheduler.config.problems import ConfigError, problem_at
from workers.runtimes.base import DeviceError, DeviceSpec, Limits


def device_spec(device: DeviceConfig) -> DeviceSpec:
    """A configured device in the form that its worker takes."""
    limits = Limits(
        device.nice,
        _bytes(device.memory_mb),
        _bytes(device.model_memory_mb),
        device.stuck_after_s,
    )
    return DeviceSpec(
        device.id,
        device.kind,
        device.cores,
        device.runtimes,
        dict(device.options),
        limits,
        device.models,
    )


def check_devices(config: Config, file: Path | None) -> None:
    """Checks the settings of a configuration's devices, as far as they don't depend on the box.

    Args:
        config: The configuration.
        file: The file it was read from; None for defaults.

    Raises:
        ConfigError: With every mistake, and its place in the file.
    """
    from workers.usable_runtimes import check_settings  # slow to import: the runtimes

    problems = []
    for index, device in enumerate(config.listed_devices):
        try:
            check_settings(device_spec(device))
        except DeviceError as error:
            problems.append(problem_at(file, ["devices", index], str(error)))
    if problems:
        raise ConfigError(str(file or "defaults"), problems)


def check_here(config: Config, file: Path | None, root: Path = Path("/")) -> None:
    """Checks the devices of a configuration that is for this machine; see `check_devices`.

    Args:
        config: The configuration.
        file: The file it was read from; None for defaults.
        root: The folder that contains `/sys`.

    Raises:
        ConfigError: As `check_devices`, or a device lists cores that the machine does not have.
    """
    check_devices(config, file)
    cpus = root / "sys/devices/system/cpu"
    problems = []
    for index, device in enumerate(config.listed_devices):
        missing = [core for core in device.cores if not (cpus / f"cpu{core}").exists()]
        if missing and cpus.exists():
            told = f"{device.id} lists cores that this machine does not have: {missing}"
            problems.append(problem_at(file, ["devices", index, "cores"], told))
    if problems:
        raise ConfigError(str(file or "defaults"), problems)


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 10**6

"""Find the runtimes that a device can use."""

from __future__ import annotations

from workers.choice import RuntimeProblem
from workers.device_options import device_options
from workers.model_yaml import nearest
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceError, DeviceSpec, Runtime
from workers.runtimes.emulated import EmulatedOptions


def check_settings(device: DeviceSpec) -> tuple[str, ...]:
    """Check the part of a device's settings that does not depend on the box.

    Returns:
        The names of the runtimes it may use, the most trusted first.

    Raises:
        DeviceError: A runtime or option is unknown, or `emulated` is not alone.
    """
    names = device.runtimes or _for_kind(device.kind)
    for name in names:
        if name not in RUNTIMES:
            hint = nearest(name, RUNTIMES)
            raise DeviceError(f"{device.id}: no runtime is called '{name}' ({hint})")
    if "emulated" not in names:
        device_options(device)
    elif len(names) > 1:
        raise DeviceError(f"{device.id}: 'emulated' answers zeros and must be alone")
    else:
        EmulatedOptions.of(device)
    return names


def usable_runtimes(device: DeviceSpec) -> tuple[list[Runtime], list[RuntimeProblem]]:
    """The runtimes of a device, the most trusted first, and why others are not used.

    Raises:
        DeviceError: No runtime can be used, or as in `check_settings`.
    """
    usable: list[Runtime] = []
    problems: list[RuntimeProblem] = []
    for name in check_settings(device):
        runtime = RUNTIMES[name]()
        reason = _why_unusable(runtime, device)
        if reason is None:
            usable.append(runtime)
        else:
            problems.append(RuntimeProblem("*", "*", name, reason))
    if not usable:
        reasons = "; ".join(problem.reason for problem in problems)
        raise DeviceError(f"{device.id} has no runtime: {reasons}")
    return usable, problems


def _for_kind(kind: str) -> tuple[str, ...]:
    made = {name: make() for name, make in RUNTIMES.items() if name != "emulated"}
    return tuple(name for name, runtime in made.items() if kind in runtime.kinds)


def _why_unusable(runtime: Runtime, device: DeviceSpec) -> str | None:
    if device.kind not in runtime.kinds:
        kinds = ", ".join(sorted(runtime.kinds))
        return f"{runtime.name} computes on {kinds}, not on a {device.kind}"
    return runtime.missing() or runtime.unreachable(device)

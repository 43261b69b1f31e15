"""Checks a box's models, the cores of its devices, and the addresses on which it listens."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from scheduler.address import Address, spoken
from scheduler.config.devices import DeviceConfig
from scheduler.core.names import did_you_mean
from scheduler.core.signature import shape_text
from scheduler.doctor.findings import NO_START, Finding, Surroundings
from scheduler.doctor.machine import is_of_a_box

_NAMED = 10
"""The most models to list by name; if there are more, only their number is reported."""


def check_models(around: Surroundings) -> Iterator[Finding]:
    """Finds models that can't be read and so would not be served, or are measured too small."""
    from workers.repository import RepositoryError, load_repository  # slow to import: the runtimes

    root = around.config.models
    if around.file is None and not os.path.isdir(root):
        yield Finding("models", "good", "not checked without a configuration: --config FILE")
        return
    try:
        repository = load_repository(root)
    except RepositoryError as error:
        yield Finding("models", "error", str(error), f"set models to another folder; {NO_START}")
        return
    for problem in repository.problems:
        serves = problem.model in repository.models  # without this variant
        told = f"{problem.model}: {problem.reason}"
        yield Finding(
            "models",
            "warning" if serves else "error",
            told,
            "fix or remove it; everything else is served",
        )
    for name, model in sorted(repository.models.items()):
        free = [spec for spec in model.signature.inputs if None in spec.shape]
        if unsized := [spec for spec in free if spec.name not in model.profile_shapes]:
            inputs = ", ".join(f"{spec.name} {shape_text(spec.shape)}" for spec in unsized)
            yield Finding(
                "models",
                "warning",
                f"{name}: has free dimensions, and is measured with 1 for each: {inputs}",
                "give a usual size under profile_shapes in its model.yaml, as the first requests "
                "of any other are predicted badly",
            )
    names = sorted(repository.models)
    yield from _placed(around.config.listed_devices, names)
    if names:
        yield Finding("models", "good", f"{root}: {_some(names)} can be read")
    elif not repository.problems:
        remedy = "a model is a folder with a model.yaml, or with 1/model.onnx"
        yield Finding("models", "warning", f"{root}: no model found", remedy)


def _placed(devices: Sequence[DeviceConfig], names: Sequence[str]) -> Iterator[Finding]:
    """Finds devices that list models that are not there, and models that no device lists."""
    left = set(names)
    for device in devices:
        for pattern in device.models:
            found = {name for name in names if fnmatchcase(name, pattern)}
            left -= found
            if names and not found:
                told = f"{device.id} lists {pattern} under models, and there is no such model"
                hint = did_you_mean(pattern, names, "change it, or add the model")
                yield Finding("models", "warning", told, hint)
    if devices and left:
        remedy = "list them under models of a device, or remove them"
        yield Finding("models", "warning", f"{_some(left)} may run on no device", remedy)


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) if len(names) <= _NAMED else f"{len(names)} models"


def check_cores(around: Surroundings) -> Iterator[Finding]:
    """Finds configured cores that do not exist or that this process may not use."""
    from edge_agent.processors import probe_cpu

    named = [device for device in around.config.listed_devices if device.cores]
    if not named:
        yield Finding("cores", "good", "no device sets cores")
        return
    cpu = probe_cpu(around.root)
    for device in named:
        if missing := cpu.lacks(device.cores):
            yield Finding(
                "cores",
                "error",
                f"{device.id} lists cores that can't be used here: {_listed(missing)}",
                f"choose its cores from {_listed(cpu.usable)}; {NO_START}",
            )
        else:
            text = f"{device.id} can use its cores: {_listed(device.cores)}"
            yield Finding("cores", "good", text)


def _listed(cores: Iterable[int]) -> str:
    return ", ".join(map(str, cores))


def check_doors(around: Surroundings) -> Iterator[Finding]:
    """Finds addresses that are in use or can't be bound, except those of the running box itself."""
    from edge_agent.state_lock import is_held

    runs = is_held(around.config.state_dir, "agent")
    listen = around.config.listen
    doors = {address: str(address) for address in listen.native}
    doors |= {address: spoken("http", str(address)) for address in listen.http}
    doors |= {address: spoken("grpc", str(address)) for address in listen.grpc}
    for address, url in doors.items():
        why = _refusal(address, listen.all)
        holder = None if why is None else _holder(address)
        if why is None:
            yield Finding("doors", "good", f"{url} is free")
        elif runs and (holder is None or is_of_a_box(holder[1])):
            yield Finding("doors", "good", f"{url} is in use by the running box")
        elif holder is None:
            yield Finding("doors", "error", why, f"fix this, or listen elsewhere; {NO_START}")
        else:
            pid, command = holder
            told = f"{url} is in use by process {pid} ({command:.40})"
            yield Finding("doors", "error", told, f"stop it, or listen elsewhere; {NO_START}")


def _refusal(address: Address, listed: Sequence[Address]) -> str | None:
    """Why an address can't be bound; None if it can. Missing folders are not created."""
    from edge_agent.listening import CantListen, check_free

    if address.path is not None:
        above = Path(address.path).parents
        nearest = next(folder for folder in above if os.path.exists(folder))
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            return f"can't listen on {address}: {nearest} can't be written by this user"
        if nearest != above[0]:
            return None
    try:
        check_free(address, listed)
    except CantListen as error:
        return error.reason  # a finding has a remedy of its own
    return None


def _holder(address: Address) -> tuple[int, str] | None:
    """The process that listens on an address, and its command line; None if it is unknown."""
    import psutil

    for each in psutil.net_connections("tcp" if address.path is None else "unix"):
        at: Any = each.laddr  # a path, or a host and a port
        if address.path is not None:
            has = at == address.path
        else:
            has = each.status == psutil.CONN_LISTEN and at.port == address.port
        if has and each.pid is not None:
            try:
                return each.pid, " ".join(psutil.Process(each.pid).cmdline())
            except psutil.Error:
                return each.pid, "?"
    return None

"""GPUs and NPUs, as the libraries that drive them report them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from workers.opt_out import opt_out


@dataclass(frozen=True)
class Accelerator:
    """A processor other than the CPU.

    Attributes:
        kind: The kind of processor.
        vendor: Its maker.
        name: Its driver's name for it.
        device_id: The id of its device, e.g. `gpu:0`; None if no installed runtime can use it.
        memory_bytes: Its own memory; None where it shares the box's or its driver doesn't say.
        driver: The driver's version.
        compute_capability: NVIDIA's number for what the GPU can execute, e.g. `8.7`.
        uuid: NVIDIA's unique id of the GPU or MIG instance, as CUDA takes it; a Tegra's has none.
    """

    kind: Literal["gpu", "npu"]
    vendor: Literal["intel", "nvidia"]
    name: str
    device_id: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    compute_capability: str | None = None
    uuid: str | None = None


@dataclass(frozen=True)
class Found:
    """The report of one library.

    Attributes:
        accelerators: The accelerators it found.
        notes: What it could not find out, and why.
    """

    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()


def openvino_devices() -> Found:
    """The Intel GPUs and NPUs that OpenVINO can use on this machine."""
    opt_out()
    try:
        import openvino
    except ImportError as error:
        return Found(notes=(f"Intel's GPUs and NPUs are not probed without OpenVINO: {error}",))
    found = []
    try:
        core = openvino.Core()
        for name in core.available_devices:
            kind, _, number = name.partition(".")
            if kind in ("GPU", "NPU"):
                full_name = str(core.get_property(name, "FULL_DEVICE_NAME"))
                found.append(_intel_accelerator(kind, number or "0", full_name))
    except RuntimeError as error:
        return Found(tuple(found), (f"OpenVINO could not describe its devices: {error}",))
    return Found(tuple(found))


def _intel_accelerator(kind: str, number: str, name: str) -> Accelerator:
    return Accelerator(
        kind="gpu" if kind == "GPU" else "npu",
        vendor="intel",
        name=name,
        device_id=f"{kind.lower()}:{number}",
    )


def nvidia_gpus(nvml: Any = None) -> Found:
    """The GPUs that NVIDIA's driver reports; empty where there is no driver.

    A partitioned GPU is replaced by its MIG instances. What CUDA_VISIBLE_DEVICES hides is left out.

    Args:
        nvml: The module `pynvml`, or a stand-in with the same calls.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return Found()
    except nvml.NVMLError as error:
        return Found(notes=(f"NVIDIA's driver could not be asked for its GPUs: {error}",))
    gpus: list[Accelerator] = []
    notes = []
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        for index in range(int(nvml.nvmlDeviceGetCount())):
            try:
                card = nvml.nvmlDeviceGetHandleByIndex(index)
                found = [_nvidia_gpu(nvml, *pair, driver) for pair in _instances(nvml, card)]
                for gpu in found:
                    if is_shown(str(index), _uuid(nvml, card), gpu.uuid):
                        gpus.append(gpu)
                    else:
                        notes.append(f"CUDA_VISIBLE_DEVICES leaves out GPU {index}: {gpu.name}")
            except nvml.NVMLError as error:  # for example one that fell off the bus
                notes.append(f"NVIDIA's driver could not describe GPU {index}: {error}")
    except nvml.NVMLError as error:
        notes.append(f"NVIDIA's driver could not describe its GPUs: {error}")
    finally:
        nvml.nvmlShutdown()
    return Found(tuple(gpus), tuple(notes))


def is_shown(number: str, *uuids: str | None) -> bool:
    """Whether this process's CUDA_VISIBLE_DEVICES names a GPU, or is not set.

    Args:
        number: The GPU's number, as `nvidia-smi` counts.
        uuids: Its UUID, and that of its MIG instance; the beginning of one is enough.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return True
    shown = [name.strip() for name in names.split(",")]
    prefixes = tuple(name for name in shown if name.startswith(("GPU-", "MIG-")))
    return number in shown or any(uuid is not None and uuid.startswith(prefixes) for uuid in uuids)


def _instances(nvml: Any, card: Any) -> list[tuple[Any, Any]]:
    """Pairs of a card and itself, or of a card and each of its MIG instances."""
    try:
        partitioned = nvml.nvmlDeviceGetMigMode(card)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError_NotSupported:
        partitioned = False
    if not partitioned:
        return [(card, card)]
    found = []
    for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(card))):
        try:
            found.append((card, nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)))
        except nvml.NVMLError_NotFound:
            continue  # a slot without an instance
    return found


def _nvidia_gpu(nvml: Any, card: Any, instance: Any, driver: str) -> Accelerator:
    try:
        memory = int(nvml.nvmlDeviceGetMemoryInfo(instance).total)
    except nvml.NVMLError_NotSupported:
        # A Tegra's GPU shares the box's memory.
        memory = None
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    return Accelerator(
        kind="gpu",
        vendor="nvidia",
        name=str(nvml.nvmlDeviceGetName(instance)),
        memory_bytes=memory,
        driver=driver,
        compute_capability=f"{major}.{minor}",
        uuid=_uuid(nvml, instance),
    )


def _uuid(nvml: Any, instance: Any) -> str | None:
    """The UUID, if it is one for CUDA_VISIBLE_DEVICES, which takes `GPU-...` and `MIG-...`.

    NVML has an Orin's and a Thor's without that prefix (NVIDIA/go-nvlib, pkg/nvlib/info).
    """
    try:
        found = str(nvml.nvmlDeviceGetUUID(instance))
    except nvml.NVMLError_NotSupported:
        return None
    return found if found.startswith(("GPU-", "MIG-")) else None

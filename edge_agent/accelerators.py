"""GPUs and NPUs, as the libraries that drive them report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Accelerator:
    """A processor beside the CPU.

    Attributes:
        kind: What sort of processor it is.
        vendor: Who made it.
        name: What its driver calls it.
        device_id: The id of the device that it can be, e.g. `gpu:0`; None where no installed
            runtime computes on it.
        memory_bytes: Its own memory; None where it shares the box's or its driver doesn't say.
        driver: The driver's version.
        compute_capability: NVIDIA's number for what the GPU can execute, e.g. `8.7`.
    """

    kind: Literal["gpu", "npu"]
    vendor: Literal["intel", "nvidia"]
    name: str
    device_id: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    compute_capability: str | None = None


@dataclass(frozen=True)
class Found:
    """What one library reports.

    Attributes:
        accelerators: What it found.
        notes: What it could not find out, and why.
    """

    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()


def openvino_devices() -> Found:
    """The Intel GPUs and NPUs that OpenVINO reaches on this machine."""
    import openvino

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


def nvidia_gpus() -> Found:
    """The GPUs that NVIDIA's driver reports on this machine; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return Found()
    except pynvml.NVMLError as error:
        return Found(notes=(f"NVIDIA's driver could not be asked for its GPUs: {error}",))
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        count = int(pynvml.nvmlDeviceGetCount())
        return Found(tuple(_nvidia_gpu(pynvml, index, driver) for index in range(count)))
    except pynvml.NVMLError as error:
        return Found(notes=(f"NVIDIA's driver could not describe its GPUs: {error}",))
    finally:
        pynvml.nvmlShutdown()


def _nvidia_gpu(pynvml: Any, index: int, driver: str) -> Accelerator:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:
        # A Tegra's GPU shares the memory of its box.
        memory = None
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Accelerator(
        kind="gpu",
        vendor="nvidia",
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory,
        driver=driver,
        compute_capability=f"{major}.{minor}",
    )

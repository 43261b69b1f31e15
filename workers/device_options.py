"""A device's `options`: how the libraries name it, and how much of it may be used."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.model_yaml import nearest
from workers.runtimes.base import DeviceError, DeviceSpec

CUDA_DEVICE = 0
"""The CUDA ordinal of a worker's GPU: `expose_gpu` hides all other GPUs from its process."""


class DeviceOptions(BaseModel):
    """The options of a device that is not emulated.

    Attributes:
        cuda: The GPU's ordinal in PCI order, or the UUID of a GPU or of a MIG instance
            (`GPU-...`, `MIG-...`, as `nvidia-smi -L` lists them); by default the number in the
            device's id.
        openvino: OpenVINO's name for the device, such as `GPU.1`; by default derived from the id.
        share: The share of a GPU's multiprocessors that may be used, where NVIDIA's Multi-Process
            Service runs.
        gpu_memory_mb: The most GPU memory that may be used, in 10^6 bytes.
        streams: How many items of a batch OpenVINO runs in parallel, for models that cannot take
            them as one batch; by default 2 on a GPU, where that does not slow a single item, and 1
            elsewhere. Whether such batches pay is measured as for any other.
        threads: How many threads the runtimes of a CPU may use; by default one per core of the
            device, or the library's choice where it is not pinned to cores.
        tf32: Whether NVIDIA's libraries may round float32 to TF32's 10 bits of mantissa.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cuda: Annotated[int, Field(ge=0)] | str | None = None
    openvino: str | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    gpu_memory_mb: Annotated[int, Field(ge=1)] | None = None
    streams: Annotated[int, Field(ge=1, le=16)] | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    tf32: bool = False


def device_options(device: DeviceSpec) -> DeviceOptions:
    """The options of a device that is not emulated.

    Raises:
        DeviceError: An option is unknown or has a wrong value.
    """
    try:
        return DeviceOptions.model_validate(dict(device.options))
    except ValidationError as error:
        raise DeviceError(f"{device.id}: {'; '.join(map(_explain, error.errors()))}") from error


def openvino_name(device: DeviceSpec) -> str:
    """OpenVINO's name for a device."""
    named = device_options(device).openvino
    if named is not None:
        return named
    kind, _, number = device.id.partition(":")
    return "CPU" if kind == "cpu" else f"{kind.upper()}.{number}"


def stream_count(device: DeviceSpec) -> int:
    """How many items OpenVINO runs in parallel on a device."""
    streams = device_options(device).streams
    return streams or (2 if device.kind == "gpu" else 1)


def thread_count(device: DeviceSpec) -> int:
    """The number of threads for a CPU's runtimes; 0 is the library's own choice."""
    return device_options(device).threads or len(device.cores)


def cuda_name(device: DeviceSpec) -> str:
    """The name of a device in `CUDA_VISIBLE_DEVICES`."""
    named = device_options(device).cuda
    return str(device.id.partition(":")[2] if named is None else named)


def expose_gpu(device: DeviceSpec, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make a GPU the only one visible to this process; call this before CUDA is loaded.

    Ray hides every GPU from an actor that requests none. Ours request none, because Ray does not
    know a Tegra's GPU or MIG instances. The variables are from the CUDA C++ Programming Guide,
    section "CUDA Environment Variables", and of the Multi-Process Service's guide.

    TF32 is forbidden here as well as by each library's own option, since ONNX Runtime has none for
    its TensorRT provider, which allows TF32 (microsoft/onnxruntime issues 6427 and 26029).
    """
    if device.kind != "gpu" or "emulated" in device.runtimes:
        return
    options = device_options(device)
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environ["CUDA_VISIBLE_DEVICES"] = cuda_name(device)
    if not options.tf32:
        environ["NVIDIA_TF32_OVERRIDE"] = "0"
    if options.share is not None:
        environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{100 * options.share:g}"
    if options.gpu_memory_mb is not None:
        # The M of MPS is of 2^20 bytes.
        mebibytes = max(1, options.gpu_memory_mb * 10**6 // 2**20)
        environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={mebibytes}M"


def _explain(error: object) -> str:
    details = dict(error)  # type: ignore[call-overload]
    name = str(details["loc"][0]) if details["loc"] else "options"
    if details["type"] == "extra_forbidden":
        return f"unknown option '{name}' ({nearest(name, DeviceOptions.model_fields)})"
    return f"option '{name}': {details['msg']} (found {details['input']!r})"

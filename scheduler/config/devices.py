"""The configuration of the devices of a box."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Discriminator, Field, Tag

from scheduler.config.types import Count, Seconds, Section, written_as

DeviceId = Annotated[
    str, written_as(r"(cpu|gpu|npu):\d+", "a kind and a number, like cpu:0, gpu:0 or npu:1")
]
Runtime = Literal[
    "openvino",
    "onnxruntime",
    "onnxruntime-cuda",
    "onnxruntime-tensorrt",
    "tensorrt",
    "emulated",
]


class DeviceConfig(Section):
    """One processor of this box that runs batches."""

    id: DeviceId
    """Kind and number: cpu:0, gpu:0, npu:0. OpenVINO's GPU.1 is gpu:1."""

    cores: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()
    """The CPU cores that the device's worker is pinned to; an empty list leaves it unpinned."""

    runtimes: tuple[Runtime, ...] = ()
    """The runtimes that may be used; an empty list allows all that support this kind of device.
    emulated returns zeros after a profile's latency, and must be named here to be used."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Settings for the runtimes: which GPU, how much of it (docs/hardware.md), or an emulated
    device's latency profile."""

    models: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """The only models that may run on the device, by name or as patterns like line-*."""

    nice: Annotated[int, Field(strict=True, ge=0, le=19)] = 0
    """The niceness of the device's worker: 0 is the highest priority, 19 the lowest."""

    memory_mb: Count | None = None
    """The most main memory that the device's worker may use, in 10^6 bytes."""

    model_memory_mb: Count | None = None
    """The most memory for loaded models, in 10^6 bytes. Beyond it, the least recently used are
    unloaded, and loaded again when they are needed. None keeps all loaded."""

    stuck_after_s: Seconds | None = 30.0
    """A batch that runs for longer than this, in seconds, and for 20 times its measured latency,
    counts as stuck: its worker is killed and restarted. None waits for ever."""

    @property
    def kind(self) -> Literal["cpu", "gpu", "npu"]:
        """The kind of processor."""
        return cast(Literal["cpu", "gpu", "npu"], self.id.partition(":")[0])


def _devices_form(value: object) -> str | None:
    if value == "auto":
        return "auto"
    return "list" if isinstance(value, list | tuple) else None


def _apart(devices: tuple[DeviceConfig, ...]) -> tuple[DeviceConfig, ...]:
    if not devices:
        raise ValueError("names no device; write auto to use what the box has")
    for id_, count in Counter(device.id for device in devices).items():
        if count > 1:
            raise ValueError(f"{id_!r} is listed {count} times; each device has its own id")
    owners: dict[int, str] = {}
    for device in devices:
        for core in device.cores if device.kind == "cpu" else ():
            owner = owners.setdefault(core, device.id)
            if owner != device.id:
                raise ValueError(
                    f"core {core} belongs to {owner!r} and to {device.id!r}; CPU devices that "
                    "share a core would spoil each other's measured latency"
                )
    return devices


Devices = Annotated[
    Annotated[Literal["auto"], Tag("auto")]
    | Annotated[tuple[DeviceConfig, ...], AfterValidator(_apart), Tag("list")],
    Discriminator(
        _devices_form,
        custom_error_type="devices_form",
        custom_error_message="should be auto, or a list such as [{id: 'cpu:0', cores: [1]}]",
    ),
]

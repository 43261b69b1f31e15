"""NVIDIA's cards, through NVML; names are from the NVML API Reference Guide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.device_options import cuda_name
from workers.runtimes.base import DeviceSpec
from workers.telemetry.reading import Reading

_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal: software",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal: hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}


class NvmlProbe:
    """Reads one GPU, or the card of a MIG instance."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Use the initialised module `pynvml` and one of its device handles."""
        self._nvml = nvml
        self._handle = handle

    def read(self) -> Reading:
        """See `Probe.read`. Values that a card does not support are None."""
        nvml, handle = self._nvml, self._handle
        usage = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        clock = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 10**6)
        limit = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000)
        return Reading(
            utilisation=usage,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=self._ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            clock_hz=clock,
            power_w=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            energy_j=self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
            power_mode=None if limit is None else f"limit {limit} W",
            throttled=self._throttled(),
        )

    def _throttled(self) -> tuple[str, ...]:
        active = self._ask(
            lambda: int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        )
        if not active:
            return ()
        return tuple(
            text for name, text in _REASONS.items() if active & int(getattr(self._nvml, name, 0))
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def nvml_probe(device: DeviceSpec) -> NvmlProbe | None:
    """The probe of a CUDA device, or None where NVML does not know it."""
    import pynvml

    try:
        pynvml.nvmlInit()
        name = cuda_name(device)
        if name.isdecimal():
            return NvmlProbe(pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(name)))
        return NvmlProbe(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        return None

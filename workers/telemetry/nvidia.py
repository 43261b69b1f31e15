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
    """Reads one GPU, or a MIG instance and what only its card knows."""

    def __init__(self, nvml: Any, handle: Any, card: Any = None) -> None:
        """Use the initialised module `pynvml`, a device handle, and that of a MIG instance's card.

        A handle of a MIG instance takes the queries of a GPU "with some restrictions"
        (nvmlDeviceIsMigDeviceHandle), such as those for temperature and power.
        """
        self._nvml = nvml
        self._handle = handle
        self._card = card

    def read(self) -> Reading:
        """See `Probe.read`. Values that a card does not support are None."""
        nvml = self._nvml
        usage = self._ask(lambda of: nvml.nvmlDeviceGetUtilizationRates(of).gpu / 100, self._handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, self._handle)
        # What the owner set; what is enforced follows the load where a laptop has Dynamic Boost.
        limit = self._known(lambda of: nvml.nvmlDeviceGetPowerManagementLimit(of) // 1000)
        return Reading(
            utilisation=usage,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=self._known(
                lambda of: float(nvml.nvmlDeviceGetTemperature(of, nvml.NVML_TEMPERATURE_GPU))
            ),
            clock_hz=self._known(
                lambda of: nvml.nvmlDeviceGetClockInfo(of, nvml.NVML_CLOCK_SM) * 10**6
            ),
            power_w=self._known(lambda of: nvml.nvmlDeviceGetPowerUsage(of) / 1000),
            energy_j=self._known(lambda of: nvml.nvmlDeviceGetTotalEnergyConsumption(of) / 1000),
            power_mode=None if limit is None else f"limit {limit} W",
            throttled=self._throttled(),
        )

    def _throttled(self) -> tuple[str, ...]:
        nvml = self._nvml
        active = self._known(lambda of: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(of)))
        if not active:
            return ()
        return tuple(
            text for name, text in _REASONS.items() if active & int(getattr(nvml, name, 0))
        )

    def _known(self, question: Callable[[Any], Any]) -> Any:
        """What the handle knows, or else its card."""
        found = self._ask(question, self._handle)
        return found if found is not None or self._card is None else self._ask(question, self._card)

    def _ask(self, question: Callable[[Any], Any], of: Any) -> Any:
        try:
            return question(of)
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
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        if not name.startswith("MIG-"):
            return NvmlProbe(pynvml, handle)
        card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return NvmlProbe(pynvml, handle, card)
    except pynvml.NVMLError:
        return None

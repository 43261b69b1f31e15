"""A device that only takes time, for trying policies on hardware that is not here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler.core.signature import STRING
from workers.model import Model, Variant
from workers.model_yaml import nearest
from workers.padding import free_axis, with_length
from workers.runtimes.base import DeviceError, DeviceSpec, ModelLoadError, RunError, check_names
from workers.runtimes.emulated_link import LinkProfile
from workers.tensors import Array

NonNegative = Annotated[float, Field(strict=True, ge=0, le=1e9)]

# Linux wakes a sleeping thread up to about this much too late.
_SPIN_NS = 200_000


class LatencyProfile(BaseModel):
    """How long a batch takes: `base_ms + per_item_ms * batch`.

    Attributes:
        base_ms: Milliseconds for any batch.
        per_item_ms: Milliseconds added by each item.
        jitter: Sigma of the lognormal factor on each batch's time; its median is 1.
        fail_rate: Share of batches of requests that fail; measuring runs never do.
        seed: Seeds jitter and failures.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_ms: NonNegative
    per_item_ms: NonNegative = 0.0
    jitter: NonNegative = 0.0
    fail_rate: NonNegative = Field(default=0.0, le=1)
    seed: Annotated[int, Field(strict=True)] = 0


class EmulatedOptions(LatencyProfile):
    """A device's `options`: the latency of its models, and the link to it.

    Attributes:
        models: Latencies of single models by name, each replacing the device's completely.
        link: The link between the scheduler and the device; None for none.
    """

    models: dict[str, LatencyProfile] = {}
    link: LinkProfile | None = None

    @classmethod
    def of(cls, device: DeviceSpec) -> EmulatedOptions:
        """The options of a device.

        Raises:
            DeviceError: They are not valid; the message says what is wrong.
        """
        try:
            return cls.model_validate(dict(device.options))
        except ValidationError as error:
            reasons = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            known = ", ".join(cls.model_fields)
            raise DeviceError(
                f"options of emulated device {device.id}: {reasons} (options are {known})"
            ) from error


def check_models(device: DeviceSpec, known: Collection[str]) -> None:
    """Refuse an emulated device with options for a model that is not in the repository.

    Raises:
        DeviceError: The message names the model and those that are known, or as in
            `EmulatedOptions.of`.
    """
    if Emulated.name not in device.runtimes:
        return
    for name in EmulatedOptions.of(device).models:
        if name not in known:
            hint = nearest(name, known)
            raise DeviceError(f"{device.id}: options.models: no model is called '{name}' ({hint})")


def link_of(device: DeviceSpec) -> LinkProfile | None:
    """The link to emulate between the scheduler and a device, or None.

    Raises:
        DeviceError: As in `EmulatedOptions.of`.
    """
    return EmulatedOptions.of(device).link if Emulated.name in device.runtimes else None


def wait_until(deadline_ns: int) -> None:
    """Wait until `time.perf_counter_ns()` reaches a value, accurate to microseconds."""
    while (left_ns := deadline_ns - time.perf_counter_ns()) > 0:
        if left_ns > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)


class Emulated:
    """Answers with zeros of the right shape after a configured time."""

    name = "emulated"
    kinds = frozenset({"cpu", "gpu", "npu"})
    suffixes = frozenset({".onnx", ".xml"})

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        wait_until: Callable[[int], None] = wait_until,
    ) -> None:
        """Use a clock, and a function that waits until a batch is due."""
        self._clock_ns = clock_ns
        self._wait_until = wait_until

    def missing(self) -> str | None:
        """None: it needs no library."""
        return None

    def unreachable(self, device: DeviceSpec) -> str | None:
        """None: it stands in for any device."""
        return None

    def processor(self, device: DeviceSpec) -> str | None:
        """None: there is no processor."""
        return None

    def version(self) -> str:
        """The version of the latency model."""
        return "1"

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> EmulatedSession:
        """Make a session from the device's options; see `Runtime.load`."""
        try:
            options = EmulatedOptions.of(device)
        except DeviceError as error:
            raise ModelLoadError(str(error)) from error
        own = options.models.get(model.name, options)
        return EmulatedSession(model, own, device, self._clock_ns, self._wait_until)


class EmulatedSession:
    """A model on an emulated device."""

    def __init__(
        self,
        model: Model,
        profile: LatencyProfile,
        device: DeviceSpec,
        clock_ns: Callable[[], int],
        wait_until: Callable[[int], None],
    ) -> None:
        """Emulate one model by a profile, on a clock."""
        self.max_batch = model.max_batch
        self._signature = model.signature
        self._names = tuple(spec.name for spec in model.signature.inputs)
        inputs = {spec.name: spec for spec in model.signature.inputs}
        self._lengths = {
            name: (each.input, free_axis(inputs[each.input]))
            for each in model.pad
            for name in each.outputs
        }
        self._profile = profile
        self._device = device
        self._clock_ns = clock_ns
        self._wait_until = wait_until
        self._rng = np.random.default_rng(profile.seed)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Take the configured time and answer zeros; see `Session.run`.

        Raises:
            RunError: A tensor is missing or unknown.
        """
        started_ns = self._clock_ns()
        check_names(inputs, self._names)
        batch = len(inputs[self._names[0]]) if self._signature.batched else 1
        self._wait_until(started_ns + self._latency_ns(batch))
        return self._zeros(batch, inputs)

    def serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a batch of requests, which may fail at random; see `Serving`.

        Raises:
            RunError: The batch failed by the profile's `fail_rate`, or as in `run`.
        """
        outputs = self.run(inputs)
        if self._profile.fail_rate and self._rng.random() < self._profile.fail_rate:
            raise RunError(f"emulated failure on {self._device.id}")
        return outputs

    def close(self) -> None:
        """Do nothing: the session holds no resources."""

    def _latency_ns(self, batch: int) -> int:
        profile = self._profile
        latency_ms = profile.base_ms + profile.per_item_ms * batch
        factor = self._rng.lognormal(0.0, profile.jitter) if profile.jitter else 1.0
        return round(latency_ms * factor * 1e6)

    def _zeros(self, batch: int, inputs: Mapping[str, Array]) -> dict[str, Array]:
        leading = (batch,) if self._signature.batched else ()
        lengths = {
            output: inputs[name].shape[len(leading) + axis]
            for output, (name, axis) in self._lengths.items()
        }
        return {
            spec.name: np.zeros(
                leading + with_length(spec, lengths.get(spec.name, 1)),
                "S1" if spec.dtype == STRING else spec.dtype,
            )
            for spec in self._signature.outputs
        }

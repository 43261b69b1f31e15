"""The interface between a device's host and the libraries that run models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from scheduler.core.signature import STRING
from workers.model import Model, Variant
from workers.tensors import Array

DeviceKind = Literal["cpu", "gpu", "npu"]
Tell = Callable[[str], None]
"""Called with short progress messages."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device's process may use of its box.

    Attributes:
        nice: Its niceness, from 0 (the highest priority) to 19; see nice(2).
        memory_bytes: The most main memory it may use; None sets no limit.
        model_bytes: The most memory for loaded models; beyond it, the least recently used are
            evicted. None keeps all loaded.
        stuck_after_s: A batch that runs for longer than this, and far longer than measured, ends
            the process; None lets it run.
    """

    nice: int = 0
    memory_bytes: int | None = None
    model_bytes: int | None = None
    stuck_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device for a host to own.

    Attributes:
        id: The device's name on its box, e.g. `cpu:0`.
        kind: The kind of processor.
        cores: The CPU cores to which its host is pinned; empty leaves the host unpinned.
        runtimes: The runtimes that may be used, the most trusted first; empty allows every runtime
            for this kind of device except `emulated`, which must be named.
        options: Settings for the runtimes: those of `workers.device_options`, or the latency
            profile of an emulated device.
        limits: What its process may use of the box.
        models: The only models that it may serve, as patterns.
    """

    id: str
    kind: DeviceKind
    cores: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    limits: Limits = field(default_factory=Limits)
    models: tuple[str, ...] = ("*",)

    @property
    def file_name(self) -> str:
        """Its id as a part of a file's name."""
        return self.id.replace(":", "-")

    def may_serve(self, model: str) -> bool:
        """Whether a model may run on it."""
        return any(fnmatchcase(model, name) for name in self.models)


class DeviceError(ValueError):
    """A device is not available as configured; the message says why or what is available."""


class ModelLoadError(Exception):
    """A runtime cannot load a variant; the message says why."""


class RunError(Exception):
    """A run failed; the message has the runtime's error.

    It holds only text, so that it can cross to processes without the runtime's library.
    """


class Session(Protocol):
    """A variant loaded on a device. Not thread-safe: one run at a time."""

    @property
    def max_batch(self) -> int:
        """The largest batch that `run` accepts."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch.

        Args:
            inputs: Tensors by name, with the dtypes of the signature and, for a batched model, a
                leading batch dimension. They are read only during the call, never written, and may
                be read-only.

        Returns:
            Outputs by name, in the signature's order, as arrays that the caller owns.

        Raises:
            Exception: Whatever the library raises for these inputs.
        """
        ...

    def close(self) -> None:
        """Free the session's resources. It cannot run afterwards."""
        ...


@runtime_checkable
class Serving(Protocol):
    """A session that treats requests differently from runs that compare or measure."""

    def serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch of requests; otherwise as `Session.run`."""
        ...


@runtime_checkable
class Retaining(Protocol):
    """A session that keeps the memory of its largest batch for later batches."""

    def give_back(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch that is not a request, and keep no more memory than it needs."""
        ...


@runtime_checkable
class Parallel(Protocol):
    """A session that may run the items of a batch side by side, each for itself."""

    @property
    def apart(self) -> bool:
        """Whether it does, so that a batch of any number is of shapes that have run."""
        ...


@runtime_checkable
class Losable(Protocol):
    """A runtime to which its device can be lost for the rest of the process."""

    def lost(self) -> str | None:
        """Why this process can no longer use the device, or None."""
        ...


class Runtime(Protocol):
    """A library that loads and runs models."""

    @property
    def name(self) -> str:
        """Its name in configuration and results."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of device on which it runs."""
        ...

    @property
    def suffixes(self) -> frozenset[str]:
        """The file suffixes it loads, with their dot."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be used here, or None if it can."""
        ...

    def unreachable(self, device: DeviceSpec) -> str | None:
        """Why it cannot run on a device of a supported kind, or None.

        Called only if `missing` returned None.
        """
        ...

    def processor(self, device: DeviceSpec) -> str | None:
        """An accelerator's name and driver, as part of a profile's fingerprint.

        None for a CPU, which can be identified without a library.
        """
        ...

    def version(self) -> str:
        """The library's version, as part of a profile's fingerprint."""
        ...

    def load(self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path) -> Session:
        """Load a variant on a device.

        Args:
            model: The variant's model.
            variant: The file to load.
            device: The device to run on.
            cache_dir: An existing folder for what the library compiles, only for this variant,
                device and library version.

        Raises:
            ModelLoadError: The file cannot be loaded on this device.
        """
        ...


@runtime_checkable
class Builder(Protocol):
    """A runtime that must first compile a variant, for minutes, to load it.

    It is left out until the other runtimes serve. Then it builds in the background, and takes over
    variants that it serves better.
    """

    def is_built(self, cache_dir: Path) -> bool:
        """Whether a folder holds everything that `load` needs."""
        ...

    def build(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path, tell: Tell
    ) -> None:
        """Compile a variant for a device into a folder.

        Args:
            model: The variant's model.
            variant: The file to compile.
            device: The device to run on.
            cache_dir: The folder that `load` will get.
            tell: Called with progress messages.

        Raises:
            ModelLoadError: The file cannot be compiled for this device.
        """
        ...


def one_line(said: BaseException | str, limit: int = 400) -> str:
    """A text on one line of at most `limit` characters; of an exception without one, its type."""
    text = " ".join(str(said).split())
    if not text and isinstance(said, BaseException):
        text = type(said).__name__
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def spell(error: Exception) -> str:
    """The type and text of any library's exception, on one line; of a `ModelLoadError`, the text.

    What the runtimes raise themselves is written for people.
    """
    if isinstance(error, ModelLoadError):
        return str(error)
    return f"{type(error).__name__}: {one_line(error)}"


def check_names(given: Mapping[str, Array], expected: tuple[str, ...]) -> None:
    """Refuse a batch whose tensors are not exactly the model's inputs.

    Raises:
        RunError: A tensor is missing or unknown.
    """
    if len(given) == len(expected) and all(name in given for name in expected):
        return
    raise RunError(f"the model takes {', '.join(expected)}, but was given {', '.join(given)}")


def refuse_text(model: Model, library: str) -> None:
    """Refuse a model with text tensors, for a library that does not support them.

    Raises:
        ModelLoadError: The message names the tensor.
    """
    for spec in model.signature.inputs + model.signature.outputs:
        if spec.dtype == STRING:
            raise ModelLoadError(
                f"{library} does not support text, and '{spec.name}' is {STRING}; "
                "use onnxruntime on a CPU"
            )


def shape_of(array: np.ndarray[Any, Any]) -> str:
    """An array's dtype and shape in the notation of a signature, e.g. `float32[2, 3]`."""
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"

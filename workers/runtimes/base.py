"""The seam between a device's host and the libraries that run models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from scheduler.core.signature import STRING
from workers.model import Model, Variant

Array = npt.NDArray[Any]
DeviceKind = Literal["cpu", "gpu", "npu"]
Tell = Callable[[str], None]
"""Hears what is going on, in a few words."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device's process may take of its box.

    Attributes:
        nice: Its priority from 0, the highest, to 19; see nice(2).
        memory_bytes: The most main memory it may use; None sets no limit.
        model_bytes: The most memory for loaded models; beyond it, the least recently used
            leave. None keeps all loaded.
        stuck_after_s: A batch that runs for longer than this, and for far longer than it was
            measured to take, ends the process; None lets it run.
    """

    nice: int = 0
    memory_bytes: int | None = None
    model_bytes: int | None = None
    stuck_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device that a host is to own.

    Attributes:
        id: The device's name on its box, e.g. `cpu:0`.
        kind: What sort of processor it is.
        cores: The CPU cores that its host is pinned to; empty leaves the host unpinned.
        runtimes: The runtimes that may be used, the trusted one first; empty allows every
            runtime that computes on this kind of device. `emulated` has to be named.
        options: Settings for the runtimes: those of `workers.device_options`, or the latency
            profile of an emulated device.
        limits: What its process may take of the box.
    """

    id: str
    kind: DeviceKind
    cores: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    limits: Limits = field(default_factory=Limits)


class DeviceError(ValueError):
    """A device cannot be had as its configuration asks; the message says what can."""


class ModelLoadError(Exception):
    """A runtime cannot load a variant; the message says why."""


class RunError(Exception):
    """A run failed; the message names the runtime and what it said.

    Holds nothing but text, so that it crosses processes that lack the runtime's library.
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
            inputs: By name, with the dtypes of the signature and, for a batched model, a
                leading batch dimension. They are read during the call only, never written,
                and may be read-only.

        Returns:
            By name, arrays that the caller owns, in the signature's order of outputs.

        Raises:
            Exception: Whatever the library raises for these inputs.
        """
        ...

    def close(self) -> None:
        """Free what the session holds. It cannot run afterwards."""
        ...

    def describe(self) -> str:
        """Say in a line what runs where and how."""
        ...


@runtime_checkable
class Serving(Protocol):
    """A session that behaves otherwise for requests than while it is compared and measured."""

    def serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch of requests; the rest is as in `Session.run`."""
        ...


@runtime_checkable
class Retaining(Protocol):
    """A session that keeps memory of its largest batch for the next one."""

    def give_back(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch that is no request, and keep no more memory than that takes."""
        ...


class Runtime(Protocol):
    """A library that loads and runs models."""

    @property
    def name(self) -> str:
        """How configuration and results call it."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of device it computes on."""
        ...

    @property
    def suffixes(self) -> frozenset[str]:
        """The file suffixes it loads, with their dot."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be used here, or None when it can."""
        ...

    def unreachable(self, device: DeviceSpec) -> str | None:
        """Why it cannot compute on a device of a kind that it knows, or None.

        Asked only where `missing` gave None.
        """
        ...

    def processor(self, device: DeviceSpec) -> str | None:
        """An accelerator's name and driver, as part of a profile's fingerprint.

        None for a CPU, which is known without a library.
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
            device: Where it is to run, on `len(device.cores)` threads.
            cache_dir: An existing folder for what the library compiles, for this variant,
                device and version of the library alone.

        Raises:
            ModelLoadError: The file cannot be loaded on this device.
        """
        ...


@runtime_checkable
class Builder(Protocol):
    """A runtime that compiles a variant for minutes before it can load it.

    It is left out until the other runtimes serve; then it builds in the background, and takes
    over what it does better.
    """

    def is_built(self, cache_dir: Path) -> bool:
        """Whether `load` finds all that it needs in a folder."""
        ...

    def build(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path, tell: Tell
    ) -> None:
        """Compile a variant for a device into a folder; the arguments are those of `load`.

        Args:
            model: The variant's model.
            variant: The file to compile.
            device: Where it is to run.
            cache_dir: Where `load` will look.
            tell: Hears how far it is.

        Raises:
            ModelLoadError: The file cannot be compiled for this device.
        """
        ...


def one_line(error: BaseException, limit: int = 400) -> str:
    """An exception's message on one line of at most `limit` characters, or else its type."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def check_names(given: Mapping[str, Array], expected: tuple[str, ...]) -> None:
    """Refuse a batch whose tensors are not exactly those that the model takes.

    Raises:
        RunError: A tensor is missing or unknown.
    """
    if len(given) == len(expected) and all(name in given for name in expected):
        return
    raise RunError(f"the model takes {', '.join(expected)}, but was given {', '.join(given)}")


def refuse_text(model: Model, library: str) -> None:
    """Refuse a model of text, for a library that has none where it computes.

    Raises:
        ModelLoadError: Names the tensor.
    """
    for spec in model.signature.inputs + model.signature.outputs:
        if spec.dtype == STRING:
            raise ModelLoadError(
                f"{library} has no text, and '{spec.name}' is {STRING}; use onnxruntime on a CPU"
            )


def shape_of(array: np.ndarray[Any, Any]) -> str:
    """An array's dtype and shape in the words of a signature, e.g. `float32[2, 3]`."""
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"

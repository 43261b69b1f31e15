"""A model of the repository: its variants, inputs and outputs, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scheduler.core.signature import Signature

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]
"""The number format that the owner allows for a variant's weights and arithmetic."""


Residency = Literal["pinned", "loaded", "lazy"]
"""`pinned` never leaves memory; `loaded` leaves it when others need the room; `lazy` does too, and
is only loaded at its first request."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The shapes that an input may have, without the batch dimension.

    Attributes:
        least: The smallest size of each dimension.
        most: The largest size of each dimension.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two runtimes' outputs may differ and still count as the same answer.

    Attributes:
        rtol: Allowed difference as a share of the largest magnitude in the tensor.
        atol: Allowed difference in the tensor's own unit.
    """

    rtol: float
    atol: float


LONGEST_S = 1e9
"""The longest time that an answer may be kept, in seconds: about thirty years."""

MOST_BLOCKS = 64
"""The most blocks into which a dimension of a frame is divided."""


@dataclass(frozen=True, slots=True)
class NearRules:
    """When a frame is near enough to an earlier one to get the same answer.

    Attributes:
        distance: The largest allowed difference in the mean of any block, in the input's own unit.
        ttl_s: The largest age of the earlier frame's answer, in seconds.
        blocks: The number of blocks along each of the two largest dimensions, 1 to 64.

    Raises:
        ValueError: A value is out of range.
    """

    distance: float
    ttl_s: float = 1.0
    blocks: int = 16

    def __post_init__(self) -> None:
        """Check the values, which may come from another box."""
        in_range = 0 < self.ttl_s <= LONGEST_S and 1 <= self.blocks <= MOST_BLOCKS
        if not (self.distance > 0 and in_range):
            raise ValueError(f"{self} is out of range")


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How answers may be cached for repeated requests.

    Attributes:
        ttl_s: How long an answer is kept, in seconds; None uses the box's configuration.
        max_kb: The largest answer kept, in 10^3 bytes; None uses the box's configuration.
        near: When nearly identical frames may share an answer; None for never.

    Raises:
        ValueError: A value is out of range.
    """

    ttl_s: float | None = None
    max_kb: int | None = None
    near: NearRules | None = None

    def __post_init__(self) -> None:
        """Check the values, which may come from another box."""
        if self.ttl_s is not None and not 0 < self.ttl_s <= LONGEST_S:
            raise ValueError(f"a ttl_s of {self.ttl_s} is out of range")
        if self.max_kb is not None and self.max_kb < 1:
            raise ValueError(f"a max_kb of {self.max_kb} is out of range")


LAYOUTS = ("NCHW", "NHWC")
"""The dimension orders of an image, with or without the batch dimension."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A smaller form in which an input may travel over a slow link.

    A JPEG holds 8-bit steps; the model's own values are `step * scale + offset`.

    Attributes:
        name: `float16` or `jpeg`.
        quality: The JPEG quality, 1 to 100; 0 where unknown.
        layout: The layout of the decoded input, one of `LAYOUTS`.
        scale: One value for all channels, or one per channel.
        offset: Like `scale`.
    """

    name: str
    quality: int = 0
    layout: str = ""
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class InputForms:
    """The smaller forms that a model's owner allows for one of its inputs.

    Attributes:
        input: The input's name.
        encodings: At least one, in order of preference.
    """

    input: str
    encodings: tuple[Encoding, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """How the items of an input are made equally long, so that they share batches.

    Attributes:
        input: The input's name; one of its dimensions is free.
        to: The lengths of the free dimension, ascending. An item is padded to the next of them; one
            that is longer than all stays as it is.
        value: What fills an item up.
        outputs: The outputs that are as long as this input, and are cut to the item's own length.

    Raises:
        ValueError: The lengths are not ascending numbers above 0.
    """

    input: str
    to: tuple[int, ...]
    value: float = 0
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths, which may come from another box."""
        lengths = (0, *self.to)
        if not self.to or any(a >= b for a, b in zip(lengths, self.to, strict=False)):
            raise ValueError(f"pad to {list(self.to)}: needs lengths above 0, in ascending order")


@dataclass(frozen=True, slots=True)
class Variant:
    """One file of a model.

    Attributes:
        name: The variant's name within the model.
        path: The `.onnx` or OpenVINO `.xml` file.
        precision: The owner's declaration; a runtime may not compute in a coarser one.
        accuracy: Share of right answers on held-out data, 0 to 1; None where not stated.
        rank: Position in the owner's order of preference, 0 first.
        digest: xxh3_128 of the file and of the weight files beside it, in hex.
        fixed_batch: True when the file fixes its batch dimension at 1.
        stateful: True when the file keeps values from one run to the next.
    """

    name: str
    path: Path
    precision: Precision
    accuracy: float | None
    rank: int
    digest: str
    fixed_batch: bool
    stateful: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the repository.

    Attributes:
        name: Its name in requests.
        description: The owner's description, possibly empty.
        signature: Inputs and outputs of one item, the same for every variant.
        variants: At least one, in order of preference.
        max_batch: The most items that may share a batch; 1 when the model has no batch
            dimension. A runtime or device may allow fewer.
        runtimes: The only runtimes that may serve it; empty allows all.
        tolerance: Overrides how far runtimes may disagree; None uses the precision's default.
        profile_shapes: By input, the item shape at which inputs with free dimensions are measured.
        digest: xxh3_128 over the variants' names, precisions and digests, in hex.
        shape_ranges: By input with free dimensions, the smallest and the largest item shape, for
            runtimes that compile for a range.
        stateless: The owner's statement that items of a stateful file may share a batch.
        residency: Whether it may leave memory when others need the room; see `Residency`.
        cache: How its answers may be cached; None for never, because its owner says so or it keeps
            values between runs.
        shrink: How inputs may be made smaller for a slow link; empty by default. Not part of
            `digest`, because it affects how inputs travel, not what is computed.
        pad: How items of different lengths are made equally long; empty by default. Not part of
            `digest`, because the answers are checked to be the same.
    """

    name: str
    description: str
    signature: Signature
    variants: tuple[Variant, ...]
    max_batch: int
    runtimes: tuple[str, ...]
    tolerance: Tolerance | None
    profile_shapes: Mapping[str, tuple[int, ...]] = field(hash=False)
    digest: str
    shape_ranges: Mapping[str, ShapeRange] = field(default_factory=dict, hash=False)
    stateless: bool = False
    residency: Residency = "loaded"
    cache: CacheRules | None = None
    shrink: tuple[InputForms, ...] = ()
    pad: tuple[Padding, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model, or one of its variants, is not served.

    Attributes:
        model: The model's folder name.
        reason: What is wrong and what would be right.
    """

    model: str
    reason: str

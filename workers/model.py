"""What the repository knows of a model: its variants, what it takes and gives, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scheduler.core.signature import Signature

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]
"""The number format that a variant's owner says its weights and arithmetic may use."""


Residency = Literal["pinned", "loaded", "lazy"]
"""`pinned` never leaves memory; `loaded` leaves it when others need the room; `lazy` does too,
and is loaded at its first request."""


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
    """How far two runtimes' outputs may lie apart and still count as the same answer.

    Attributes:
        rtol: Allowed distance as a share of the largest magnitude in the tensor.
        atol: Allowed distance in the tensor's own unit.
    """

    rtol: float
    atol: float


LONGEST_S = 1e9
"""For no longer is an answer kept, in seconds: thirty years."""

MOST_BLOCKS = 64
"""Into no more blocks is a dimension of a frame divided."""


@dataclass(frozen=True, slots=True)
class NearRules:
    """When an earlier frame is near enough for its answer to serve another one too.

    Attributes:
        distance: The most by which the mean of any block may differ, in the input's own unit.
        ttl_s: How old the earlier frame's answer may be, in seconds.
        blocks: Into how many blocks each of the two largest dimensions is divided, 1 to 64.

    Raises:
        ValueError: One of them is out of its range.
    """

    distance: float
    ttl_s: float = 1.0
    blocks: int = 16

    def __post_init__(self) -> None:
        """Refuses what another box may have said."""
        in_range = 0 < self.ttl_s <= LONGEST_S and 1 <= self.blocks <= MOST_BLOCKS
        if not (self.distance > 0 and in_range):
            raise ValueError(f"{self} is out of range")


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How answers may be kept for those who ask the same again.

    Attributes:
        ttl_s: For how long, in seconds; None leaves it to the box's configuration.
        max_kb: Up to which size, in 10^3 bytes; None leaves it to the box's configuration.
        near: Whether frames that are nearly the same may share an answer; None for never.

    Raises:
        ValueError: One of them is out of its range.
    """

    ttl_s: float | None = None
    max_kb: int | None = None
    near: NearRules | None = None

    def __post_init__(self) -> None:
        """Refuses what another box may have said."""
        if self.ttl_s is not None and not 0 < self.ttl_s <= LONGEST_S:
            raise ValueError(f"a ttl_s of {self.ttl_s} is out of range")
        if self.max_kb is not None and self.max_kb < 1:
            raise ValueError(f"a max_kb of {self.max_kb} is out of range")


LAYOUTS = ("NCHW", "NHWC")
"""Where the channels of an image are, with or without the batch dimension."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A smaller form in which an input may travel over a slow link.

    A JPEG holds 8-bit steps; the model's own values are `step * scale + offset`.

    Attributes:
        name: `float16` or `jpeg`.
        quality: Of a JPEG, 1 to 100; 0 where that is not known.
        layout: Of the input that a JPEG becomes, one of `LAYOUTS`.
        scale: Of all channels, or of each.
        offset: The same.
    """

    name: str
    quality: int = 0
    layout: str = ""
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class InputForms:
    """The smaller forms that the owner of a model allows for one of its inputs.

    Attributes:
        input: The input's name.
        encodings: At least one, the preferred first.
    """

    input: str
    encodings: tuple[Encoding, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One file of a model.

    Attributes:
        name: The variant's name within the model.
        path: The `.onnx` or OpenVINO `.xml` file.
        precision: What the owner declares; it also bounds what a runtime may compute in.
        accuracy: Share of right answers on held-out data, 0 to 1, where the owner states one.
        rank: Place in the owner's order of preference, 0 first.
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
        name: What requests call it.
        description: The owner's words, possibly empty.
        signature: Inputs and outputs of one item; every variant shares it.
        variants: At least one, in order of preference.
        max_batch: The most items that may share a batch; 1 when the model has no batch
            dimension. A runtime or device may allow fewer.
        runtimes: The only runtimes that may serve it; empty allows all.
        tolerance: Overrides how far runtimes may disagree; None uses the precision's default.
        profile_shapes: Item shapes, by input, to measure inputs with free dimensions at.
        digest: xxh3_128 over the variants' names, precisions and digests, in hex.
        shape_ranges: The smallest and the largest item shape of inputs with free dimensions,
            by input, for runtimes that compile for a range.
        stateless: The owner's word that a stateful file's items may share a batch.
        residency: Whether it may leave memory when others need the room, see `Residency`.
        cache: How its answers may be kept; None where they never are: its owner says so, or it
            keeps values between runs.
        shrink: How inputs may be made smaller for a slow link; none where the owner says nothing.
            No part of `digest`, which says what answers: this says how a question gets there.
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


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model, or one of its variants, is not served.

    Attributes:
        model: The model's folder name.
        reason: What is wrong and what would be right.
    """

    model: str
    reason: str

"""The schema and parser of `model.yaml`, the owner's description of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from scheduler.core.names import did_you_mean
from scheduler.yaml_loader import MALFORMED, explained, load
from workers.model import LONGEST_S, MOST_BLOCKS, Precision, Residency

NAME_PATTERN = r"[A-Za-z0-9._-]{1,128}"
"""The pattern that a whole model or variant name must match."""

Name = Annotated[str, StringConstraints(pattern=rf"^{NAME_PATTERN}$")]
PositiveInt = Annotated[int, Field(ge=1, lt=2**31)]
TimeToLive = Annotated[float, Field(gt=0, le=LONGEST_S)]


class ModelFileError(ValueError):
    """A `model.yaml` cannot be used; the message says where and what would be accepted."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class VariantEntry(_Strict):
    """One entry under `variants`.

    Attributes:
        file: The variant's `.onnx` or `.xml` file, relative to the model's folder.
        precision: The precision of the file; a runtime never computes in a coarser one.
        accuracy: Share of right answers on held-out data.
    """

    file: str
    precision: Precision = "fp32"
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


class ToleranceEntry(_Strict):
    """How far two runtimes' outputs may differ; see `workers.model.Tolerance`."""

    rtol: Annotated[float, Field(ge=0)]
    atol: Annotated[float, Field(ge=0)]


class ShapeRangeEntry(_Strict):
    """The shapes that an input may have; see `workers.model.ShapeRange`."""

    least: list[PositiveInt]
    most: list[PositiveInt]


class NearEntry(_Strict):
    """When frames are near enough to share an answer; see `workers.model.NearRules`."""

    distance: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ttl_s: TimeToLive = 1.0
    blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] = 16


class CacheEntry(_Strict):
    """How answers may be cached; see `workers.model.CacheRules`."""

    ttl_s: TimeToLive | None = None
    max_kb: PositiveInt | None = None
    near: NearEntry | None = None


class JpegEntry(_Strict):
    """How an image input becomes a JPEG and what its 8 bits mean; see `workers.model.Encoding`.

    Attributes:
        quality: As in libjpeg.
        layout: The dimension order of the input, which has 1 or 3 channels.
        range: The values that stand for black and white.
        mean: Instead of `range`, the mean that normalised images from 0 to 1, per channel.
        std: Likewise the standard deviation.
    """

    quality: Annotated[int, Field(ge=1, le=100)] = 90
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    range: list[float] | None = Field(default=None, min_length=2, max_length=2)
    mean: list[float] | None = Field(default=None, min_length=1, max_length=3)
    std: list[Annotated[float, Field(gt=0)]] | None = Field(
        default=None, min_length=1, max_length=3
    )


class Float16Entry(_Strict):
    """Has no settings."""


class FormEntry(_Strict):
    """One smaller form of an input."""

    float16: Float16Entry | None = None
    jpeg: JpegEntry | None = None


def _form_by_name(said: Any) -> Any:
    """Accept the name of a form instead of a mapping without settings."""
    return {said: {}} if isinstance(said, str) else said


class PadEntry(_Strict):
    """How the items of an input are made equally long; see `workers.model.Padding`."""

    to: Annotated[list[PositiveInt], Field(min_length=1)]
    value: Annotated[float, Field(allow_inf_nan=False)] | bool = 0


class InputEntry(_Strict):
    """One entry under `inputs`.

    Attributes:
        shrink: The smaller forms allowed on a slow link, in order of preference.
        pad: How items of different lengths are made equally long.
    """

    shrink: list[Annotated[FormEntry, BeforeValidator(_form_by_name)]] = []
    pad: PadEntry | None = None


class OutputEntry(_Strict):
    """One entry under `outputs`.

    Attributes:
        as_long_as: The padded input that has the length of this output.
    """

    as_long_as: str


def _yes_or_no(said: Any) -> Any:
    """Accept `true` for the defaults and `false` for none."""
    return {} if said is True else None if said is False else said


class ModelFile(_Strict):
    """A whole `model.yaml`.

    Attributes:
        description: For people.
        variants: By name, in order of preference; empty if the file names none, which leaves the
            choice to the version folders.
        max_batch: The most items that may share a batch.
        runtimes: The only runtimes that may serve the model, by name.
        tolerance: How far runtimes may disagree, instead of the precision's default.
        profile_shapes: Item shapes, without batch dimension, at which inputs are measured.
        shape_ranges: Smallest and largest item shapes of inputs with free dimensions; TensorRT
            needs them.
        stateless: Whether a file that keeps values between runs may batch its items.
        residency: Whether the model may leave memory when others need the room.
        cache: How the box's result cache may keep its answers; `false` for never.
        inputs: Settings of inputs, by name.
        outputs: Settings of outputs, by name.
    """

    description: str = ""
    variants: dict[Name, VariantEntry] = Field(default={}, min_length=1)
    max_batch: PositiveInt | None = None
    runtimes: list[str] | None = Field(default=None, min_length=1)
    tolerance: ToleranceEntry | None = None
    profile_shapes: dict[str, list[PositiveInt]] = {}
    shape_ranges: dict[str, ShapeRangeEntry] = {}
    stateless: bool = False
    residency: Residency = "loaded"
    cache: Annotated[CacheEntry | None, BeforeValidator(_yes_or_no)] = CacheEntry()
    inputs: dict[str, InputEntry] = {}
    outputs: dict[str, OutputEntry] = {}


def parse_model_file(text: str) -> ModelFile:
    """Parse the text of a `model.yaml`.

    Raises:
        ModelFileError: It is not YAML, or has an unknown or repeated key or a wrong value.
    """
    try:
        content = load(text)
    except MALFORMED as error:
        message, line = explained(error, text)
        where = "" if line is None else f"line {line}: "
        raise ModelFileError(f"not valid YAML: {where}{message}") from error
    if not isinstance(content, dict):
        raise ModelFileError("must be a mapping, with keys such as 'variants'")
    try:
        return ModelFile.model_validate(content)
    except ValidationError as error:
        raise ModelFileError("; ".join(map(_explain, error.errors()))) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to an unknown one, or else all known words."""
    choices = list(known)
    return did_you_mean(word, choices, f"known are {', '.join(choices) or 'none'}")


def _explain(error: Any) -> str:
    path = [str(part) for part in error["loc"] if part != "[key]"]
    where = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"unknown key '{where}' ({nearest(path[-1], _keys_at(path[:-1]))})"
    if error["type"] == "missing":
        return f"key '{where}' is missing"
    if error["type"] == "string_type" and "[key]" in error["loc"]:
        return f"key '{where}' must be a string: put it in quotes"
    return f"'{where}': {error['msg']} (found {error['input']!r})"


def _keys_at(path: list[str]) -> Iterable[str]:
    if not path:
        return ModelFile.model_fields
    form = JpegEntry if "jpeg" in path else Float16Entry if "float16" in path else FormEntry
    sections: dict[str, type[BaseModel]] = {
        "tolerance": ToleranceEntry,
        "shape_ranges": ShapeRangeEntry,
        "cache": NearEntry if "near" in path else CacheEntry,
        "inputs": form if "shrink" in path else PadEntry if "pad" in path else InputEntry,
        "outputs": OutputEntry,
    }
    return sections.get(path[0], VariantEntry).model_fields

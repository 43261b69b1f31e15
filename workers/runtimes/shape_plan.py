"""Plan the shape ranges for which a runtime compiles a variant."""

from __future__ import annotations

from dataclasses import dataclass

from workers.model import Model, ShapeRange, Variant
from workers.profiling import batch_ladder
from workers.runtimes.base import ModelLoadError

MAX_PROFILES = 3
"""Each profile takes about as long to compile as the first."""


@dataclass(frozen=True, slots=True)
class InputRange:
    """The shapes of one input in one profile, batch dimension included.

    Attributes:
        least: The smallest shape.
        best: The shape for which kernels are chosen.
        most: The largest shape.
    """

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]


Profile = dict[str, InputRange]
"""The range of every input, by name; TensorRT calls this an optimisation profile."""


def plan_profiles(model: Model, variant: Variant, max_batch: int) -> list[Profile]:
    """Cover a model's batch sizes and shape ranges with few profiles.

    Batch size 1 has its own profile, because on an idle box most requests run alone. The rest of
    the ladder is split evenly, and each profile is optimised for its largest batch, where a slow
    kernel would cost most.

    Args:
        model: The model, whose `shape_ranges` must bound every free dimension.
        variant: The file; with a fixed batch dimension it gets a single profile.
        max_batch: The largest batch to serve.

    Raises:
        ModelLoadError: A free dimension has no bounds.
    """
    ranges = {spec.name: _bounds(model, spec.name, spec.shape) for spec in model.signature.inputs}
    if not model.signature.batched:
        return [{name: _range(bounds, None, None) for name, bounds in ranges.items()}]
    return [
        {name: _range(bounds, least, most) for name, bounds in ranges.items()}
        for least, most in batch_spans(1 if variant.fixed_batch else max_batch)
    ]


def batch_spans(max_batch: int) -> list[tuple[int, int]]:
    """Split the batch ladder into spans, each from a smallest to a largest batch size."""
    rungs = list(batch_ladder(max_batch))
    spans, rest = [(1, 1)], rungs[1:]
    parts = min(MAX_PROFILES - 1, len(rest))
    for part in range(parts):
        own = rest[part * len(rest) // parts : (part + 1) * len(rest) // parts]
        spans.append((spans[-1][1] + 1, own[-1]))
    return spans


def profile_for(profiles: list[Profile], shapes: dict[str, tuple[int, ...]]) -> int | None:
    """The index of the first profile that covers the given shapes, or None."""
    for index, profile in enumerate(profiles):
        if all(_covers(profile[name], shape) for name, shape in shapes.items()):
            return index
    return None


def one_profile(profiles: list[Profile]) -> Profile:
    """A single profile for all shapes of several, optimised as the last of them.

    Args:
        profiles: The profiles of `plan_profiles`, from the smallest batches to the largest.
    """
    first, last = profiles[0], profiles[-1]
    return {
        name: InputRange(first[name].least, span.best, span.most) for name, span in last.items()
    }


def spell_profile(profile: Profile, end: str) -> str:
    """One end of a profile in ONNX Runtime's syntax: `image:1x3x224x224,size:1x2`.

    Args:
        profile: The profile to write.
        end: `least`, `best` or `most`.
    """
    return ",".join(
        f"{name}:{'x'.join(map(str, getattr(span, end)))}" for name, span in profile.items()
    )


def _bounds(
    model: Model, name: str, shape: tuple[int | None, ...]
) -> tuple[ShapeRange, tuple[int, ...]]:
    fixed = tuple(dim for dim in shape if dim is not None)
    if len(fixed) == len(shape):
        return ShapeRange(fixed, fixed), fixed
    bounds = model.shape_ranges.get(name)
    if bounds is None:
        raise ModelLoadError(
            f"input '{name}' has free dimensions, and TensorRT compiles for bounded ones; say "
            f"`shape_ranges: {{{name}: {{least: [...], most: [...]}}}}` in model.yaml"
        )
    typical = model.profile_shapes.get(name, bounds.most)
    return bounds, typical


def _range(
    bounds: tuple[ShapeRange, tuple[int, ...]], least: int | None, most: int | None
) -> InputRange:
    span, typical = bounds
    small = () if least is None else (least,)
    large = () if most is None else (most,)
    best = tuple(
        min(max(size, low), high)
        for size, low, high in zip(typical, span.least, span.most, strict=True)
    )
    return InputRange((*small, *span.least), (*large, *best), (*large, *span.most))


def _covers(span: InputRange, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(span.least) and all(
        low <= size <= high for low, size, high in zip(span.least, shape, span.most, strict=True)
    )

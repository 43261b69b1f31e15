"""Make a faster variant, measure it, and add it to its model if it is good enough."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.files import replace_file
from workers.model import Model, Variant
from workers.model_files import weight_bytes
from workers.model_yaml import parse_model_file
from workers.optimising.comparison import Losses, Samples, Speed, Tell, answers, losses, speeds
from workers.optimising.conversion import ConversionError, Target, convert
from workers.optimising.model_yaml_edit import model_file_text, with_variant
from workers.repository import load_repository
from workers.tensors import Item


@dataclass(frozen=True, slots=True)
class Made:
    """A variant that was made.

    Attributes:
        name: Its name.
        source: The name of the variant that it was made from.
        precision: Its number format.
        size_bytes: The size of its files.
        source_bytes: The size of the source's files.
        losses: What its answers lose.
        speeds: How each runtime here performs with it.
        source_speeds: How each runtime performs with the source.
        accuracy: Its accuracy in `model.yaml`, which is the source's less the measured drop; None
            where there were no labels.
        refused: Why it was not added to the model; None if it was.
    """

    name: str
    source: str
    precision: Target
    size_bytes: int
    source_bytes: int
    losses: Losses
    speeds: tuple[Speed, ...]
    source_speeds: tuple[Speed, ...]
    accuracy: float | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class Wish:
    """The variant to make.

    Attributes:
        source: The variant to start from.
        to: The number format.
        name: The name of the new variant and its file.
        max_drop: The largest allowed drop, as a share; see `Losses.drop`.
    """

    source: Variant
    to: Target
    name: str
    max_drop: float


def optimise(
    folder: Path,
    model: Model,
    wish: Wish,
    calibration: Sequence[Item],
    samples: Samples,
    tell: Tell,
) -> Made:
    """Make a variant and, if its drop is within the limit, add it to the model.

    It is inserted right after its source in the order of preference.

    Args:
        folder: The model's folder.
        model: The model in the folder.
        wish: The variant to make.
        calibration: Typical items, none of which is among the samples.
        samples: The items on which it is compared with its source.
        tell: Called with progress messages.

    Raises:
        ConversionError: The source is of the wrong kind, or cannot be converted.
        ModelFileError: The name is taken.
        ModelLoadError: ONNX Runtime cannot load the new variant.
        OSError: The folder cannot be written.
    """
    source = wish.source
    _check(source, wish)
    _edited(folder, model, wish, None)  # a name that is taken fails here, before the work
    if (folder / f"{wish.name}.onnx").exists():
        raise ConversionError(
            f"there is a file {wish.name}.onnx already, which belongs to no variant"
        )
    with tempfile.TemporaryDirectory(prefix=".laxity-optimize-", dir=folder) as scratch:
        file = Path(scratch, f"{wish.name}.onnx")
        tell(f"{wish.name}: converting")
        convert(source.path, file, wish.to, calibration, model.signature.batched)
        variant = replace(
            source, name=wish.name, path=file, precision=wish.to, accuracy=None, digest=""
        )
        made = _measured(model, wish, variant, samples, tell)
        if made.refused is None:
            made = _adopted(folder, model, wish, Path(scratch), made)
    return made


def _adopted(folder: Path, model: Model, wish: Wish, scratch: Path, made: Made) -> Made:
    """Move the new files into the model's folder; undone if the repository's reader objects."""
    described = folder / "model.yaml"
    before = described.read_text(encoding="utf-8") if described.exists() else None
    text = _edited(folder, model, wish, made.accuracy)
    with ExitStack() as undo:
        for part in scratch.iterdir():
            undo.callback(Path(shutil.move(part, folder / part.name)).unlink)
        replace_file(described, text)
        undo.callback(
            described.unlink if before is None else partial(replace_file, described, before)
        )
        refused = _unread(folder, made)
        if refused is None:
            undo.pop_all()
    return replace(made, refused=refused)


def _check(source: Variant, wish: Wish) -> None:
    if source.path.suffix != ".onnx":
        raise ConversionError(
            f"variant '{source.name}' is not an .onnx file; only those can be converted"
        )
    if source.precision != "fp32":
        raise ConversionError(
            f"variant '{source.name}' is {source.precision}; start from an fp32 one"
        )
    if source.stateful and wish.to == "int8":
        raise ConversionError(
            f"variant '{source.name}' keeps values between runs and cannot become int8"
        )


def _measured(model: Model, wish: Wish, variant: Variant, samples: Samples, tell: Tell) -> Made:
    source = wish.source
    before = answers(model, source, samples, tell)
    after = answers(model, variant, samples, tell)
    found = losses(before, after, samples)
    fast = tuple(speeds(model, variant, samples, after, tell))
    refused = None
    if found.drop > wish.max_drop:
        what = "agreement" if found.accuracy is None else "accuracy"
        refused = f"it loses {found.drop:.1%} of {what}, where {wish.max_drop:.1%} is allowed"
    return Made(
        wish.name,
        source.name,
        wish.to,
        weight_bytes(variant.path),
        weight_bytes(source.path),
        found,
        fast,
        tuple(speeds(model, source, samples, before, tell)),
        _declared(source, found),
        refused,
    )


def _declared(source: Variant, found: Losses) -> float | None:
    """The accuracy to declare; relative to the source's, which may be from other items."""
    if found.accuracy is None:
        return None
    if source.accuracy is None:
        return round(found.accuracy, 4)
    return round(min(1.0, max(0.0, source.accuracy - found.drop)), 4)


def _edited(folder: Path, model: Model, wish: Wish, accuracy: float | None) -> str:
    path = folder / "model.yaml"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not text or not parse_model_file(text).variants:
        sources = {v.name: {"file": v.path.relative_to(folder).as_posix()} for v in model.variants}
        text = model_file_text(sources, text)
    entry: dict[str, Any] = {"file": f"{wish.name}.onnx", "precision": wish.to}
    if accuracy is not None:
        entry["accuracy"] = accuracy
    return with_variant(text, wish.source.name, wish.name, entry)


def _unread(folder: Path, made: Made) -> str | None:
    """Why the repository's reader rejects the new variant, or None."""
    repository = load_repository(folder.parent)
    model = repository.models.get(folder.name)
    if model is not None and made.name in [variant.name for variant in model.variants]:
        return None
    return "; ".join(p.reason for p in repository.problems if p.model == folder.name)

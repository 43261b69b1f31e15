"""The model repository: reads folders of model files into models that can be served."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import xxhash

from scheduler.core.signature import STRING, Signature, TensorSpec, fits
from workers.input_forms import forms_of
from workers.model import (
    CacheRules,
    Model,
    NearRules,
    Precision,
    Problem,
    ShapeRange,
    Tolerance,
    Variant,
)
from workers.model_files import ModelFileFault, check_model_files, files_digest, why_no_file
from workers.model_yaml import (
    NAME_PATTERN,
    ModelFile,
    ModelFileError,
    VariantEntry,
    nearest,
    parse_model_file,
)
from workers.padding import longest, padding_of, ranges
from workers.runtimes import RUNTIMES
from workers.runtimes.base import ModelLoadError, spell
from workers.runtimes.readers import read_tensors
from workers.signatures import Reading, difference, interpret

DEFAULT_MAX_BATCH = 32
"""The most items in a batch of a model whose `model.yaml` sets no `max_batch`."""

_SUFFIXES = (".onnx", ".xml")


class RepositoryError(Exception):
    """The repository's folder itself cannot be read."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The content of a repository's folder.

    Attributes:
        models: The models with at least one usable variant, by name.
        problems: The models and variants that are left out, and why.
    """

    models: dict[str, Model]
    problems: tuple[Problem, ...]

    @property
    def names(self) -> list[str]:
        """The names of all models, with those that can't be used, sorted."""
        return sorted({*self.models, *(problem.model for problem in self.problems)})


@dataclass(frozen=True, slots=True)
class _Candidate:
    variant: Variant
    signature: Signature


def load_repository(root: Path, only: Container[str] | None = None) -> Repository:
    """Read every model below a folder.

    A model is a folder with a `model.yaml`, or one in Triton's layout
    (`<model>/<version>/model.onnx`), whose highest version is used. What cannot be used becomes a
    `Problem`, and the rest is loaded. Symbolic links are followed.

    Args:
        root: The folder.
        only: The names of the entries to read; None for all.

    Raises:
        RepositoryError: `root` is not a readable folder.
    """
    models: dict[str, Model] = {}
    problems: list[Problem] = []
    for folder in _model_folders(root, only, problems):
        model = _attempt(folder, problems)
        if model is not None:
            models[model.name] = model
    return Repository(
        models, tuple(Problem(_sendable(p.model), _sendable(p.reason)) for p in problems)
    )


def _sendable(text: str) -> str:
    """A text with the bytes of file names that are no UTF-8 escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _model_folders(
    root: Path, only: Container[str] | None, problems: list[Problem]
) -> Iterator[Path]:
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        raise RepositoryError(f"model repository {root}: {error.strerror or error}") from error
    for entry in entries:
        if entry.name.startswith(".") or (only is not None and entry.name not in only):
            continue
        try:
            is_folder = entry.is_dir()
            nowhere = entry.readlink() if entry.is_symlink() and not entry.exists() else None
        except OSError as error:  # a link into a folder without access, or it has just gone
            problems.append(Problem(entry.name, str(error)))
            continue
        if is_folder:
            yield entry
        elif entry.suffix in _SUFFIXES:
            home = f"{entry.stem}/1/model{entry.suffix}"
            problems.append(
                Problem(entry.stem, f"{entry.name} is not in a model folder; move it to {home}")
            )
        elif nowhere is not None:
            told = f"it is a link to {nowhere}, which is not there"
            problems.append(Problem(entry.name, told))


def _attempt(folder: Path, problems: list[Problem]) -> Model | None:
    try:
        return _load_model(folder, problems)
    except (ModelFileError, ModelLoadError, OSError) as error:
        problems.append(Problem(folder.name, str(error)))
        return None
    except Exception as error:  # whatever it is, it must not cost the other models
        problems.append(Problem(folder.name, f"reading it failed: {spell(error)}"))
        return None


def _load_model(folder: Path, problems: list[Problem]) -> Model:
    if not re.fullmatch(NAME_PATTERN, folder.name):
        raise ModelFileError(f"'{folder.name}' is no model name; names match {NAME_PATTERN}")
    described = os.path.lexists(folder / "model.yaml")  # also a link to nowhere, which is told
    content = _read_model_file(folder) if described else ModelFile()
    if not content.variants:
        content = content.model_copy(update={"variants": _latest_version(folder, described)})
    candidates: list[_Candidate] = []
    reasons: list[str] = []
    for rank, (name, entry) in enumerate(content.variants.items()):
        expected = candidates[0].signature if candidates else None
        loaded = _attempt_variant(folder, name, entry, rank, expected)
        if isinstance(loaded, _Candidate):
            candidates.append(loaded)
        else:
            reasons.append(f"variant '{name}': {loaded}")
    if not candidates:
        raise ModelLoadError("; ".join(reasons))
    model = _assemble(folder.name, content, candidates)
    problems.extend(Problem(folder.name, reason) for reason in reasons)
    return model


def _read_model_file(folder: Path) -> ModelFile:
    path = folder / "model.yaml"
    if reason := why_no_file(path):  # reading a pipe would not end
        raise ModelFileError(f"file 'model.yaml' {reason}")
    try:
        return parse_model_file(path.read_text(encoding="utf-8"))
    except (ModelFileError, UnicodeDecodeError) as error:
        raise ModelFileError(f"model.yaml: {error}") from error


def _latest_version(folder: Path, described: bool) -> dict[str, VariantEntry]:
    """The variant that a folder in Triton's layout serves; `described` if it has a model.yaml."""
    versions = [path for path in folder.iterdir() if path.is_dir() and _is_version(path.name)]
    dangling: Path | None = None
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        for suffix in _SUFFIXES:
            file = version / f"model{suffix}"
            if file.exists():
                return {version.name: VariantEntry(file=f"{version.name}/model{suffix}")}
            if os.path.lexists(file):
                dangling = dangling or file.relative_to(folder)
    if dangling:
        raise ModelFileError(f"file '{dangling}' {why_no_file(folder / dangling)}")
    lacking = "model.yaml: key 'variants' is missing, and there is no"
    raise ModelFileError(
        f"{lacking if described else 'has neither a model.yaml nor a'} version folder with a "
        f"model.onnx, e.g. 1/model.onnx{_misplaced(folder, versions)}"
    )


def _is_version(name: str) -> bool:
    """Whether it is a number that can be a variant's name; other scripts have digits too."""
    return name.isdecimal() and re.fullmatch(NAME_PATTERN, name) is not None


def _misplaced(folder: Path, versions: Iterable[Path]) -> str:
    """A hint where to move a single misplaced model file; empty if there is not exactly one."""
    beside = [path for path in folder.iterdir() if path.suffix in _SUFFIXES]
    within = [path for each in versions for path in each.iterdir() if path.suffix in _SUFFIXES]
    if len(found := [*beside, *within]) != 1:
        return ""
    (file,) = found
    home = "1" if beside else file.parent.name
    others = " and its .bin beside it, as model.bin" if file.suffix == ".xml" else ""
    return f"; move {file.relative_to(folder)} to {home}/model{file.suffix}{others}"


def _attempt_variant(
    folder: Path, name: str, entry: VariantEntry, rank: int, expected: Signature | None
) -> _Candidate | str:
    try:
        candidate = _load_variant(folder, name, entry, rank)
    except (ModelFileError, ModelFileFault, ModelLoadError, OSError) as error:
        return str(error)
    reason = expected and difference(candidate.signature, expected)
    return f"{reason}; variants must be interchangeable" if reason else candidate


def _load_variant(folder: Path, name: str, entry: VariantEntry, rank: int) -> _Candidate:
    path = _variant_path(folder, entry.file)
    tensors = read_tensors(path)
    if not tensors.inputs:
        raise ModelFileError(f"file '{entry.file}' has no inputs; a request needs at least one")
    reading: Reading = interpret(tensors)
    variant = Variant(
        name=name,
        path=path,
        precision=entry.precision,
        accuracy=entry.accuracy,
        rank=rank,
        digest=files_digest(path),
        fixed_batch=reading.fixed_batch,
        stateful=reading.stateful,
    )
    return _Candidate(variant, reading.signature)


def _variant_path(folder: Path, file: str) -> Path:
    relative = PurePosixPath(file)
    if relative.is_absolute() or ".." in relative.parts:
        raise ModelFileError(f"file '{file}' lies outside the model's folder")
    if relative.suffix not in _SUFFIXES:
        raise ModelFileError(f"file '{file}' must end in {' or '.join(_SUFFIXES)}")
    path = folder / relative
    if reason := why_no_file(path):
        raise ModelFileError(f"file '{file}' {reason}")
    check_model_files(path)
    return path


def _assemble(name: str, content: ModelFile, candidates: list[_Candidate]) -> Model:
    signature = candidates[0].signature
    for runtime in content.runtimes or ():
        if runtime not in RUNTIMES:
            hint = nearest(runtime, RUNTIMES)
            raise ModelFileError(f"runtimes: no runtime is called '{runtime}' ({hint})")
    variants = tuple(candidate.variant for candidate in candidates)
    tolerance = content.tolerance
    shrink = forms_of(content, signature)
    padding = padding_of(content, signature)
    return Model(
        name=name,
        description=content.description,
        signature=signature,
        variants=variants,
        max_batch=(content.max_batch or DEFAULT_MAX_BATCH) if signature.batched else 1,
        runtimes=tuple(content.runtimes or ()),
        tolerance=Tolerance(tolerance.rtol, tolerance.atol) if tolerance else None,
        profile_shapes={**longest(padding, signature), **_profile_shapes(content, signature)},
        digest=_model_digest(variants),
        shape_ranges={**ranges(padding, signature), **_shape_ranges(content, signature)},
        stateless=content.stateless,
        residency=content.residency,
        cache=_cache_rules(content, signature, variants),
        shrink=shrink,
        pad=padding,
    )


def _cache_rules(
    content: ModelFile, signature: Signature, variants: tuple[Variant, ...]
) -> CacheRules | None:
    said = content.cache
    keeps_values = any(variant.stateful for variant in variants) and not content.stateless
    if said is None or keeps_values:
        return None
    near = said.near
    if near is not None and len(signature.inputs) != 1:
        raise ModelFileError("cache.near: needs a model with exactly one input")
    if near is not None and signature.inputs[0].dtype == STRING:
        raise ModelFileError("cache.near: needs frames as input, not text")
    return CacheRules(said.ttl_s, said.max_kb, NearRules(**near.model_dump()) if near else None)


def _profile_shapes(content: ModelFile, signature: Signature) -> dict[str, tuple[int, ...]]:
    specs = {spec.name: spec for spec in signature.inputs}
    return {
        name: _fitting("profile_shapes", name, shape, specs)
        for name, shape in content.profile_shapes.items()
    }


def _shape_ranges(content: ModelFile, signature: Signature) -> dict[str, ShapeRange]:
    specs = {spec.name: spec for spec in signature.inputs}
    ranges: dict[str, ShapeRange] = {}
    for name, entry in content.shape_ranges.items():
        least = _fitting("shape_ranges", name, entry.least, specs)
        most = _fitting("shape_ranges", name, entry.most, specs)
        if any(low > high for low, high in zip(least, most, strict=True)):
            raise ModelFileError(f"shape_ranges: least {least} of '{name}' exceeds most {most}")
        ranges[name] = ShapeRange(least, most)
    return ranges


def _fitting(
    key: str, name: str, shape: list[int], specs: Mapping[str, TensorSpec]
) -> tuple[int, ...]:
    if name not in specs:
        raise ModelFileError(f"{key}: no input '{name}' ({nearest(name, specs)})")
    wanted = specs[name].shape
    if not fits(shape, wanted):
        raise ModelFileError(f"{key}: {shape} does not fit '{name}' of {wanted}")
    return tuple(shape)


def _model_digest(variants: tuple[Variant, ...]) -> str:
    parts: list[tuple[str, Precision, str]] = [(v.name, v.precision, v.digest) for v in variants]
    return xxhash.xxh3_128(repr(parts).encode()).hexdigest()

"""Makes a model's inputs from files of arrays, pictures or text, and notes every change made."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scheduler.cli.streams import WrongUsage
from scheduler.core.signature import STRING, fits, shape_text
from scheduler.texts import as_text

if TYPE_CHECKING:
    from PIL import Image

TEXT = ".txt"
"""The suffix of text files."""

_NUMPY = frozenset({".npy", ".npz"})

PICTURES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
"""Suffixes of files that are read with Pillow."""

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_CHOSEN = re.compile(r"(?P<path>.+?\.np[yz])(?::(?P<array>[^\[\]]+))?(?:\[(?P<item>-?\d+)\])?")

Spec = Mapping[str, Any]
"""Name, dtype and item shape of an input, as `Client.models` returns them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An input, ready to be sent.

    Attributes:
        array: The data, in the shape and dtype of one item of the model's input.
        steps: The changes made to the file's data, in order, for people.
    """

    array: NDArray[Any]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The source named by one `--input`.

    Attributes:
        name: The model's input; None if the file's arrays name it, or the model has only one.
        path: The file.
        array: The array in an .npz file.
        item: The index of an item along the first dimension.
    """

    name: str | None
    path: Path
    array: str | None = None
    item: int | None = None

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture, read with Pillow."""
        return self.path.suffix.lower() in PICTURES


def parse_source(text: str, names: Container[str] = ()) -> Source:
    """Parses `[NAME=]PATH`, where the PATH of a NumPy file may end in `:ARRAY`, `[ITEM]` or both.

    A text file is an array of its lines. What has a slash in it is a name only if it is in `names`.
    """
    name, separator, rest = text.partition("=")
    is_path = "/" in name and name not in names
    if not separator or not name or is_path or os.path.exists(text):
        name, rest = "", text
    chosen = None if os.path.exists(rest) else _CHOSEN.fullmatch(rest)
    if chosen is None:
        return Source(name or None, Path(rest))
    item = chosen["item"]
    return Source(name or None, Path(chosen["path"]), chosen["array"], item and int(item))  # type: ignore[arg-type]


def load_inputs(
    texts: Sequence[str], specs: Sequence[Spec], levels: tuple[float, float] | None
) -> dict[str, Prepared]:
    """The inputs of one request.

    Args:
        texts: As `parse_source` takes them.
        specs: The inputs of the model.
        levels: The values for black and white in pictures; None means 0 and 1 for float inputs,
            0 and 255 for others.

    Raises:
        WrongUsage: A file can't be read or used, or an input has no source or two.
    """
    by_name = {str(spec["name"]): spec for spec in specs}
    prepared: dict[str, Prepared] = {}
    for text in texts:
        for name, found in _load(parse_source(text, by_name), by_name, levels).items():
            if name in prepared:
                raise WrongUsage(f"input {name!r} is given twice")
            prepared[name] = found
    if missing := [name for name in by_name if name not in prepared]:
        wanted = ", ".join(f"{name} ({_spell(by_name[name])})" for name in missing)
        raise WrongUsage(f"no --input for {wanted}; write --input {missing[0]}=PATH")
    return prepared


def load_items(texts: Sequence[str], specs: Sequence[Spec]) -> list[dict[str, NDArray[Any]]]:
    """Many items, from arrays whose first dimension runs over the items.

    Args:
        texts: As `parse_source` takes them, without an item.
        specs: The inputs of the model.

    Raises:
        WrongUsage: A file can't be read or used, an input has no source or two, or the sources
            hold different numbers of items, or fewer than two.
    """
    by_name = {str(spec["name"]): spec for spec in specs}
    columns: dict[str, list[NDArray[Any]]] = {}
    for text in texts:
        source = parse_source(text, by_name)
        if source.is_picture or source.item is not None:
            raise WrongUsage(f"{text} is one item; an array of many is needed")
        for name, array in _arrays(source, by_name).items():
            if name in columns:
                raise WrongUsage(f"input {name!r} is given twice")
            if name not in by_name:
                raise WrongUsage(f"the model has no input {name!r}; it has {', '.join(by_name)}")
            columns[name] = [conform(row, by_name[name]).array for row in np.atleast_1d(array)]
    if missing := [name for name in by_name if name not in columns]:
        raise WrongUsage(f"no --input for {', '.join(missing)}")
    counts = {len(column) for column in columns.values()}
    if len(counts) != 1 or counts == {0} or counts == {1}:
        held = ", ".join(f"{len(column)} of {name}" for name, column in columns.items())
        raise WrongUsage(f"at least two items are needed, as many for each input; found {held}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def load_array(text: str) -> NDArray[Any]:
    """One array: `PATH`, or `PATH:ARRAY`.

    Raises:
        WrongUsage: The file can't be read, or it is not clear which array is meant.
    """
    source = parse_source(text)
    (array,) = _arrays(source, {"": {}}).values()
    return array


def _load(
    source: Source, specs: Mapping[str, Spec], levels: tuple[float, float] | None
) -> dict[str, Prepared]:
    if source.name is not None and source.name not in specs:
        raise WrongUsage(f"the model has no input {source.name!r}; it has {', '.join(specs)}")
    if source.is_picture:
        name = _only(source, specs)
        return {name: from_picture(_open_picture(source.path), specs[name], levels)}
    prepared = {}
    for name, array in _arrays(source, specs).items():
        steps: tuple[str, ...] = ()
        if source.item is not None:
            array, steps = _item_of(array, source), (f"item {source.item} of {len(array)}",)
        conformed = conform(array, specs[name])
        prepared[name] = Prepared(conformed.array, (*steps, *conformed.steps))
    return prepared


def _only(source: Source, specs: Mapping[str, Spec]) -> str:
    if source.name is not None:
        return source.name
    if len(specs) != 1:
        raise WrongUsage(
            f"the model has the inputs {', '.join(specs)}: say which one {source.path} is, "
            f"as in --input {next(iter(specs), 'NAME')}={source.path}"
        )
    return next(iter(specs))


def _arrays(source: Source, specs: Mapping[str, Spec]) -> dict[str, NDArray[Any]]:
    path = source.path
    try:
        if path.suffix.lower() == TEXT:
            return {_only(source, specs): np.array(path.read_text("utf-8").splitlines(), str)}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if source.array is not None:
                raise WrongUsage(
                    f"{path} holds one array without a name; leave out :{source.array}"
                )
            return {_only(source, specs): loaded}
        with loaded as file:
            found = _from_archive(file.files, source, specs)
            return {name: _array_of(file, held, path) for name, held in found.items()}
    except WrongUsage:
        raise
    except OSError as error:
        raise WrongUsage(f"{path} can't be read: {error.strerror or error}") from None
    except MemoryError as error:
        raise WrongUsage(f"{path} can't be read: {str(error) or 'no memory is left'}") from None
    except Exception as error:  # a damaged file leads NumPy, and what it uses, to raise any kind
        if path.suffix.lower() == TEXT:
            raise WrongUsage(f"{path} is no text in UTF-8: {error}") from None
        if path.suffix.lower() in _NUMPY:
            raise WrongUsage(
                f"{path} can't be read: it is cut short, damaged, not written by NumPy, or holds "
                "Python objects; accepted are arrays of numbers or text"
            ) from None
        known = ", ".join(sorted({*_NUMPY, TEXT, *PICTURES}))
        raise WrongUsage(
            f"{path} is not a NumPy file, picture or text; accepted are {known}"
        ) from None


def _array_of(file: Any, held: str, path: Path) -> NDArray[Any]:
    array = file[held]
    if not isinstance(array, np.ndarray):  # its bytes, where they are none of NumPy's
        raise WrongUsage(f"{path}: {held} is no array of NumPy")
    return array


def _from_archive(held: Sequence[str], source: Source, specs: Mapping[str, Spec]) -> dict[str, str]:
    """The name in an archive, for each input that is taken from it."""
    if not held:
        raise WrongUsage(f"{source.path} has no array in it")
    if source.array is not None:
        if source.array not in held:
            raise WrongUsage(
                f"{source.path} has no array {source.array!r}; it has {', '.join(held)}"
            )
        return {_only(source, specs): source.array}
    if source.name is None and (same := [name for name in held if name in specs]):
        return {name: name for name in same}
    if source.name in held:
        return {str(source.name): str(source.name)}
    if len(held) == 1:
        return {_only(source, specs): held[0]}
    name = source.name or next(iter(specs), "NAME")
    example = f"--input {name}={source.path}:{held[0]}"
    raise WrongUsage(f"{source.path} has the arrays {', '.join(held)}; say which, as in {example}")


def _item_of(array: NDArray[Any], source: Source) -> NDArray[Any]:
    count = len(array) if array.ndim else 0
    if source.item is None or not -count <= source.item < count:
        raise WrongUsage(f"{source.path} has {count} items; there is no item {source.item}")
    return np.asarray(array[source.item])


def conform(array: NDArray[Any], spec: Spec) -> Prepared:
    """Fits an array to one item of an input by casting, and adding or dropping dimensions of 1.

    Raises:
        WrongUsage: It would take more than that.
    """
    if (array.dtype.kind in "SU") != (spec["dtype"] == STRING):
        held = STRING if array.dtype.kind in "SU" else array.dtype
        raise WrongUsage(f"input {spec['name']!r} is {_spell(spec)}; the file has {held}")
    steps: list[str] = []
    wanted = list(spec["shape"])
    if not fits(array.shape, wanted):
        shape = _reshaped(array.shape, wanted)
        if shape is None:
            hint = ""
            if array.ndim and _reshaped(array.shape[1:], wanted) is not None:
                hint = f"; choose one of its {len(array)} items, as in PATH[0]"
            raise WrongUsage(
                f"input {spec['name']!r} is {_spell(spec)}, not {shape_text(array.shape)}{hint}"
            )
        steps.append(f"shape {shape_text(array.shape)} -> {shape_text(shape)}")
        array = array.reshape(shape)
    if spec["dtype"] == STRING:
        return Prepared(as_text(str(spec["name"]), array), tuple(steps))
    dtype = np.dtype(str(spec["dtype"]))
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise WrongUsage(
                f"input {spec['name']!r} is {dtype}; the file's {array.dtype} would lose detail"
            )
        steps.append(f"{array.dtype} -> {dtype}")
    return Prepared(_cast(array, spec), tuple(steps))


def _cast(array: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """The array in an input's dtype; NumPy would wrap what does not fit, or make it infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(str(spec["dtype"]), order="C")
    lost = cast != array if cast.dtype.kind in "iu" else np.isinf(cast) & ~np.isinf(array)
    if np.any(lost):
        raise WrongUsage(
            f"input {spec['name']!r} is {cast.dtype}, where there is no room for {array[lost][0]:g}"
        )
    return cast


def _reshaped(shape: Sequence[int], wanted: Sequence[int | None]) -> list[int] | None:
    """The shape of an array fitted to `wanted`; None if more than dimensions of 1 differ."""
    if None not in wanted and _without_ones(shape) == _without_ones(wanted):
        return [int(size) for size in wanted if size is not None]
    core = list(shape)
    while core and core[0] == 1:
        del core[0]
    padded = [1] * (len(wanted) - len(core)) + core
    return padded if fits(padded, wanted) else None


def _without_ones(shape: Sequence[int | None]) -> list[int | None]:
    return [size for size in shape if size != 1]


def _open_picture(path: Path) -> Image.Image:
    try:
        from PIL import Image
    except ImportError:
        raise WrongUsage(
            f"reading {path} needs Pillow: pip install 'laxity[image]' (or save it as .npy)"
        ) from None
    try:
        picture: Image.Image = Image.open(path)
        picture.load()
    except Image.DecompressionBombError as error:
        raise WrongUsage(f"{path} can't be read: {error}") from None
    except Exception as error:  # a damaged file leads Pillow to raise errors of any kind
        why = getattr(error, "strerror", None) or "not a picture, or a damaged one"
        raise WrongUsage(f"{path} can't be read: {why}") from None
    if picture.mode.startswith(("I", "F")):
        raise WrongUsage(f"{path} has more than 8 bits per channel; save it with 8, or as .npy")
    return picture


def from_picture(
    picture: Image.Image, spec: Spec, levels: tuple[float, float] | None = None
) -> Prepared:
    """Converts a picture to one item of an input of shape [C, H, W], [H, W, C] or [H, W].

    Args:
        picture: A picture of any mode and size.
        spec: The input; a free height or width keeps the picture's own.
        levels: The values for black and white, as in `load_inputs`.

    Raises:
        WrongUsage: The input's shape is not one of a picture.
    """
    from PIL import Image

    channels, height, width, axis = _layout(spec)
    dtype = np.dtype(str(spec["dtype"]))
    steps = [f"{picture.width}x{picture.height} {picture.mode}"]
    mode = _MODES[channels]
    if picture.mode != mode:
        picture = picture.convert(mode)
        steps.append("grayscale" if mode == "L" else mode)
    size = (width or picture.width, height or picture.height)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
        steps.append(f"resized to {size[0]}x{size[1]}")
    low, high = levels or ((0, 255) if dtype.kind in "iu" else (0, 1))
    pixels = np.asarray(picture, np.float64) / 255 * (high - low) + low
    steps.append(f"black to white as {low:g} to {high:g}")
    if dtype.kind in "iu":
        pixels = pixels.round()
    if axis is not None:
        pixels = pixels.reshape(size[1], size[0], channels)
        if axis == 0:
            pixels = pixels.transpose(2, 0, 1)
            steps += ["HWC -> CHW"] if channels > 1 else []
    steps.append(f"{dtype} {shape_text(pixels.shape)}")
    return Prepared(_cast(pixels, spec), tuple(steps))


def _layout(spec: Spec) -> tuple[int, int | None, int | None, int | None]:
    """Channels, height and width of an input, and the axis of the channels if it has one."""
    shape = [] if spec["dtype"] == STRING else list(spec["shape"])
    if len(shape) == 2:
        return 1, shape[0], shape[1], None
    if len(shape) == 3 and shape[0] in _MODES:
        return shape[0], shape[1], shape[2], 0
    if len(shape) == 3 and shape[2] in _MODES:
        return shape[2], shape[0], shape[1], 2
    raise WrongUsage(
        f"input {spec['name']!r} is {_spell(spec)}, which is no picture's shape; "
        "give it a .npy file"
    )


def _spell(spec: Spec) -> str:
    return f"{spec['dtype']} {shape_text(spec['shape'])}"

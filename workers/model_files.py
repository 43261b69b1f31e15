"""Find a model's files and check that they are intact before a library reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import xxhash

Looks = tuple[tuple[str, int, int, int], ...]
"""The names and sizes of files, and when their content and their entries changed."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_CHUNK_BYTES = 1 << 20
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT = 10

_MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""By kind of message, the fields that may lead to a tensor, and the kind of message they hold; from
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto."""

_DEEPEST = 100
"""The Protocol Buffers libraries refuse messages that are nested deeper."""

_KEY, _VALUE = 1, 2
_LOCATION = b"location"
_LONGEST_LOCATION = 4_096


class ModelFileFault(ValueError):
    """A model's file is not intact; the message says what was found instead."""


def check_model_files(path: Path) -> None:
    """Refuse a model file that is absent, empty, a pointer, cut short or of another format.

    Also refuse a model that names weight files outside its folder.

    Args:
        path: An `.onnx` file, or an OpenVINO `.xml` with its `.bin` beside it.

    Raises:
        ModelFileFault: The message has the file's name, what is wrong and what helps.
        OSError: It cannot be read.
    """
    parts = [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]
    for part in parts:
        _check_content(part)
    if path.suffix == ".onnx":
        _named_weights(path)


def why_no_file(path: Path) -> str | None:
    """Why no file can be read there, as the end of a sentence about it; None if one can."""
    if path.is_file():
        return None
    if path.is_dir():
        return "is a folder"
    if path.exists():
        return "is a pipe or a device, not a file"
    if path.is_symlink():
        return f"is a link to {path.readlink()}, which is not there"
    return "is absent"


def weight_files(path: Path) -> list[Path]:
    """A model file with the files that hold its weights.

    For an ONNX model these are the files whose names extend its own, such as `model.onnx.data` and
    `model.onnx_data`, where exporters put weights, and all others that it names.

    Raises:
        ModelFileFault: As in `check_model_files`.
    """
    if path.suffix == ".xml":
        return [path, path.with_suffix(".bin")]
    beside = {part for part in path.parent.glob(f"{escape(path.name)}*") if part.is_file()}
    named = {part for part in _named_weights(path) if part.is_file()}
    return [*sorted(beside), *sorted(named - beside)]


def looks_of(path: Path) -> Looks:
    """How a file looks, or every file and link in a folder, without reading them.

    Raises:
        OSError: One of them can't be looked at, or has gone meanwhile.
    """
    within = path.rglob("*") if path.is_dir() else [path]
    files = sorted(p for p in within if p.is_file() or p.is_symlink())
    stats = [(str(file), _stat(file)) for file in files]
    # Copying may keep the time of the content, and some stores give the same one to all files.
    return tuple([(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats])


def _stat(file: Path) -> os.stat_result:
    """A file's state; for a link to nowhere, its own."""
    try:
        return file.stat()
    except FileNotFoundError:
        return file.lstat()


def files_digest(path: Path) -> str:
    """A hash of a model file and its weight files.

    Raises:
        OSError: A file can't be read.
        ModelFileFault: As in `check_model_files`.
    """
    digest = xxhash.xxh3_128()
    for part in weight_files(path):
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def weight_bytes(path: Path) -> int:
    """The size of a model's files in bytes, a lower bound on its memory when loaded.

    It is 0 where files are gone, and that of `path` alone where it is not intact; the library that
    loads the model reports such faults.
    """
    with suppress(OSError):
        try:
            files = weight_files(path)
        except ModelFileFault:
            files = [path]
        return sum(part.stat().st_size for part in files)
    return 0


def _check_content(path: Path) -> None:
    if reason := why_no_file(path):
        raise ModelFileFault(f"file '{path.name}' {reason}")
    with path.open("rb") as file:
        head = file.read(len(_LFS_POINTER))
    if head == _LFS_POINTER:
        raise ModelFileFault(f"file '{path.name}' is a Git LFS pointer; run `git lfs pull`")
    if not head and path.suffix != ".bin":
        raise ModelFileFault(f"file '{path.name}' is empty")


class _Field(NamedTuple):
    """A field of a message: its number, and where its content begins and ends in the file."""

    number: int
    start: int
    end: int


def _named_weights(path: Path) -> set[Path]:
    """The weight files that an ONNX model names.

    This walks all messages that may contain a tensor and reads only the keys and lengths of their
    fields, so its time depends on the number of nodes, not on the size of the file.

    Raises:
        ModelFileFault: The file is cut short or no ONNX model, or names files elsewhere.
        OSError: It cannot be read.
    """
    found: set[Path] = set()
    with path.open("rb") as file:
        size = path.stat().st_size
        # Depth first, so that only the enclosing messages are kept.
        within = [(_MESSAGES["model"], _fields(path, file, 0, size, size))]
        while within:
            inner, fields = within[-1]
            field = next(fields, None)
            if field is None:
                within.pop()
            elif inner.get(field.number) == "entry":
                location = _location(path, file, field, size)
                found |= {path.parent / location} if location else set()
            elif field.number in inner:
                if len(within) == _DEEPEST:
                    raise ModelFileFault(_no_onnx(path, field.start))
                messages = _fields(path, file, field.start, field.end, size)
                within.append((_MESSAGES[inner[field.number]], messages))
    return found


def _location(path: Path, file: BinaryIO, entry: _Field, size: int) -> str | None:
    """The file that an entry names for a tensor's bytes; None for other entries."""
    said: dict[int, bytes] = {}
    for number, start, end in _fields(path, file, entry.start, entry.end, size):
        file.seek(start)
        said[number] = file.read(min(end - start, _LONGEST_LOCATION))
    if said.get(_KEY) != _LOCATION:
        return None
    location = said.get(_VALUE, b"").decode(errors="replace")
    where = PurePosixPath(location)
    if where.is_absolute() or ".." in where.parts or "\0" in location:
        raise ModelFileFault(
            f"file '{path.name}' has its weights in {location!r:.200}, outside of its folder"
        )
    return location


def _fields(path: Path, file: BinaryIO, start: int, end: int, size: int) -> Iterator[_Field]:
    """The fields of a message.

    For the encoding see https://protobuf.dev/programming-guides/encoding/.
    """
    while start < end:
        file.seek(start)
        head = file.read(2 * _LONGEST_VARINT)
        try:
            key, rest = _varint(head, 0)
            kind = key & 7
            length = 0
            if kind == 0:
                _, rest = _varint(head, rest)
            elif kind == _LENGTH_DELIMITED:
                length, rest = _varint(head, rest)
            else:
                length = _FIXED_BYTES[kind]
        except IndexError:
            raise _cut_short(path, size) from None
        except (KeyError, ValueError):
            raise ModelFileFault(_no_onnx(path, start)) from None
        if key >> 3 == 0:
            raise ModelFileFault(_no_onnx(path, start))
        field = _Field(key >> 3, start + rest, start + rest + length)
        if field.end > size:
            raise _cut_short(path, size, field.end)
        if field.end > end:
            raise ModelFileFault(_no_onnx(path, start))
        yield field
        start = field.end


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise ValueError("a number of more than 64 bits")


def _cut_short(path: Path, size: int, wanted: int | None = None) -> ModelFileFault:
    of = f" of at least {wanted:,}" if wanted else ""
    return ModelFileFault(
        f"file '{path.name}' is cut short, or not an ONNX model: it holds {size:,} bytes{of}; "
        "copy it again"
    )


def _no_onnx(path: Path, position: int) -> str:
    with path.open("rb") as file:
        file.seek(position)
        found = file.read(12)
    where = "begins with" if position == 0 else f"has at byte {position:,}"
    return f"file '{path.name}' is no ONNX model: it {where} {found!r}"

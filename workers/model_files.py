"""Whether a model's files are whole, before any library is asked to read them."""

from __future__ import annotations

from glob import escape
from pathlib import Path

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT = 10


class ModelFileFault(ValueError):
    """A model's file is not whole; the message says what it is instead."""


def check_model_files(path: Path) -> None:
    """Refuse a model file that is absent, empty, a pointer, cut short or of another format.

    Args:
        path: An `.onnx` file, or an OpenVINO `.xml` with its `.bin` beside it.

    Raises:
        ModelFileFault: With the file's name, what is wrong and what helps.
        OSError: It cannot be read.
    """
    parts = [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]
    for part in parts:
        _check_content(part)
    if path.suffix == ".onnx":
        _check_onnx(path)


def weight_files(path: Path) -> list[Path]:
    """A model file with the weight files whose names extend its own.

    `model.onnx.data` and `model.onnx_data` are where exporters put an ONNX model's weights.
    """
    if path.suffix == ".xml":
        return [path, path.with_suffix(".bin")]
    return sorted(part for part in path.parent.glob(f"{escape(path.name)}*") if part.is_file())


def weight_bytes(path: Path) -> int:
    """The size of a model's files in bytes, less than which it cannot take when loaded."""
    return sum(part.stat().st_size for part in weight_files(path))


def _check_content(path: Path) -> None:
    if not path.is_file():
        raise ModelFileFault(f"file '{path.name}' is absent")
    with path.open("rb") as file:
        head = file.read(len(_LFS_POINTER))
    if head == _LFS_POINTER:
        raise ModelFileFault(f"file '{path.name}' is a Git LFS pointer; run `git lfs pull`")
    if not head and path.suffix != ".bin":
        raise ModelFileFault(f"file '{path.name}' is empty")


def _check_onnx(path: Path) -> None:
    """Walk over the fields of the file's outermost message, which is all of an ONNX model.

    The encoding is that of https://protobuf.dev/programming-guides/encoding/. Only the fields'
    lengths are read, so a file of any size takes microseconds.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        while (position := file.tell()) < size:
            head = file.read(2 * _LONGEST_VARINT)
            try:
                key, rest = _varint(head, 0)
                kind = key & 7
                if kind == 0:
                    _, rest = _varint(head, rest)
                    length = 0
                elif kind == _LENGTH_DELIMITED:
                    length, rest = _varint(head, rest)
                else:
                    length = _FIXED_BYTES[kind]
            except IndexError:
                raise _cut_short(path, size) from None
            except (KeyError, ValueError):
                raise ModelFileFault(_no_onnx(path, position)) from None
            if key >> 3 == 0:
                raise ModelFileFault(_no_onnx(path, position))
            end = position + rest + length
            if end > size:
                raise _cut_short(path, size, end)
            file.seek(end)


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
        f"file '{path.name}' is cut short, or no ONNX model: it holds {size:,} bytes{of}; "
        "copy it again"
    )


def _no_onnx(path: Path, position: int) -> str:
    with path.open("rb") as file:
        file.seek(position)
        found = file.read(12)
    where = "begins with" if position == 0 else f"has at byte {position:,}"
    return f"file '{path.name}' is no ONNX model: it {where} {found!r}"

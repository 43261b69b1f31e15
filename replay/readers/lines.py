"""Numbered lines of a file of any length, plain or gzip, read one at a time."""

from __future__ import annotations

import contextlib
import gzip
import math
import re
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

LONGEST_LINE = 1 << 20
"""Longer than any line of a known format; a file without line ends must not fill the memory."""

LARGEST_COUNT = 10**15
"""Above every count, and every time in ms, that makes sense in a trace."""

_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN = 60
_DECIMAL = re.compile(r"(\d{1,15})(?:\.(\d{1,30}))?", re.ASCII)


class TraceError(ValueError):
    """A file can't be read as a trace; the message is `FILE:LINE: FOUND; expected EXPECTED`.

    Attributes:
        path: The file's name as it was given.
        line: The line, from 1; None where the whole file is at fault.
        found: What is wrong.
        expected: What would be accepted.
    """

    def __init__(self, path: str, line: int | None, found: str, expected: str) -> None:
        """Builds the message."""
        place = path if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {found}; expected {expected}")
        self.path = path
        self.line = line
        self.found = found
        self.expected = expected

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, int | None, str, str]]:
        return type(self), (self.path, self.line, self.found, self.expected)


class Lines(Iterator[str]):
    """The lines of a file as text, without line ends; blank lines are skipped.

    Args:
        path: The file's name, for errors.
        raw: Its lines with their line ends. Errors of gzip from here become `TraceError`.

    Attributes:
        path: As given.
        number: The number of the line read last, from 1; 0 before the first.
    """

    def __init__(self, path: str, raw: Iterable[bytes]) -> None:
        """Begins before the first line."""
        self.path = path
        self.number = 0
        self._raw = iter(raw)
        self._line_ended = True
        self._held: list[str] = []

    def __next__(self) -> str:
        if self._held:
            return self._held.pop()
        while True:
            text = self._decoded(self._next_raw())
            if text and not text.isspace():
                return text

    def peek(self) -> str | None:
        """The next line, without reading past it; None at the end of the file."""
        if not self._held:
            for text in self:
                self._held.append(text)
                break
        return self._held[0] if self._held else None

    def error(self, found: str, expected: str) -> TraceError:
        """The error to raise for the line that was read last."""
        if not self._line_ended:
            found += " (the file ends without a line end here, so it may have been cut short)"
        return TraceError(self.path, self.number or None, found, expected)

    def count(self, text: str, name: str) -> int:
        """A whole number from 0.

        Raises:
            TraceError: The text is no such number.
        """
        if len(text) <= 15 and text.isascii() and text.isdecimal():
            return int(text)
        value = self._number(text, name, "a whole number from 0")
        if value != int(value):
            raise self.error(f"{name} is {shown(text)}", "a whole number from 0")
        return int(value)

    def number_from_0(self, text: str, name: str) -> float:
        """A number from 0.

        Raises:
            TraceError: The text is no such number.
        """
        return self._number(text, name, "a number from 0")

    def ns_of_ms(self, text: str, name: str) -> int:
        """Converts milliseconds from 0 to nanoseconds, exactly, from the decimal digits.

        Raises:
            TraceError: The text is no such number.
        """
        match = _DECIMAL.fullmatch(text.strip())
        if match is not None:
            whole, fraction = match.groups(default="")
            return int(whole) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
        return round(self._number(text, name, "a time in ms, from 0") * 1e6)

    def _number(self, text: str, name: str, expected: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{name} is {shown(text)}", expected) from None
        if not math.isfinite(value) or not 0 <= value <= LARGEST_COUNT:
            raise self.error(f"{name} is {shown(text)}", f"{expected} to {LARGEST_COUNT:g}")
        return value

    def _next_raw(self) -> bytes:
        try:
            line = next(self._raw)
        except EOFError:
            raise self._broken(
                "the compressed data end too early",
                "a complete gzip file, or a slice that ends before this line",
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._broken(f"damaged gzip data ({error})", "a sound gzip file") from None
        except OSError as error:
            raise self._broken(
                f"reading failed ({error.strerror or error})", "more lines"
            ) from None
        self.number += 1
        return line

    def _broken(self, found: str, expected: str) -> TraceError:
        return TraceError(self.path, self.number + 1, found, expected)

    def _decoded(self, line: bytes) -> str:
        if len(line) > LONGEST_LINE:
            longest = f"lines of at most {LONGEST_LINE:,} bytes"
            raise self.error("a longer line than any format has", longest)
        self._line_ended = line.endswith(b"\n")
        if self.number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if b"\0" in line:
            raise self.error("binary data", "text in UTF-8, plain or gzip")
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self.error("binary data", "text in UTF-8, plain or gzip") from None


@contextlib.contextmanager
def open_lines(path: Path | str) -> Generator[Lines]:
    """Opens a file or a pipe; gzip is recognised by its first bytes.

    Raises:
        TraceError: The file can't be opened, or is named `.gz` but isn't gzip.
    """
    name = str(path)
    try:
        # A pipe can't be read twice, so the first bytes are looked at in the buffer.
        file = open(path, "rb")  # noqa: SIM115
    except (OSError, ValueError) as error:  # the latter for a null byte in its name
        found = f"can't be opened ({getattr(error, 'strerror', None) or error})"
        raise TraceError(name, None, found, "a trace that can be read") from None
    with file:
        try:
            start = file.peek(2)[:2]
        except OSError as error:
            found = f"can't be read ({error.strerror})"
            raise TraceError(name, None, found, "a trace that can be read") from None
        if start != _GZIP_MAGIC:
            if name.endswith(".gz") and start:
                raise TraceError(name, None, "named .gz, but its bytes are not gzip", "a gzip file")
            yield Lines(name, _raw_lines(file))
            return
        with gzip.GzipFile(fileobj=file) as unzipped:
            yield Lines(name, _raw_lines(cast(BinaryIO, unzipped)))


def is_number(text: str) -> bool:
    """Whether a text looks like a number, though it may be one that no trace has."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def shown(text: str) -> str:
    """A piece of a file in the form in which errors quote it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(LONGEST_LINE + 1):
        yield line

"""Journal files, read as streams and grouped into runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgpack

from replay.readers import TraceError
from scheduler.journal_format import (
    MAGIC,
    SUFFIX,
    Closed,
    Decoder,
    Entry,
    FormatError,
    Gap,
    Header,
    decode_header,
)

_LARGEST_RECORD = 64 << 20
_LONGEST_LIST = 1_000_000

_ZEROS = 64
"""A run of at least this many zeros at the end of a file is what a power loss leaves behind."""

_BLOCK = 65_536

Note = Callable[[str], None]
"""Receives a text about each problem that does not stop the journal from being read."""


class JournalError(TraceError):
    """A file can't be read as a journal; the message is `FILE, record N: FOUND; expected …`.

    Attributes:
        record: The record's number, from 1; None where the whole file is at fault.
    """

    def __init__(self, path: str, line: int | None, found: str, expected: str) -> None:
        """Builds the message; `line` is the number of the record."""
        super().__init__(path, line, found, expected)
        self.record = line
        place = path if line is None else f"{path}, record {line}"
        self.args = (f"{place}: {found}; expected {expected}",)


def warn(text: str) -> None:
    """Issues a note as a Python warning."""
    warnings.warn(text, stacklevel=2)


def journal_files(path: Path | str) -> list[Path]:
    """The files of a journal, oldest first.

    Args:
        path: A folder, or one file.

    Raises:
        JournalError: The folder can't be read, or has no journal files.
    """
    path = Path(path)
    if not os.path.isdir(path):
        return [path]
    try:
        files = sorted(path / name for name in os.listdir(path) if name.endswith(SUFFIX))
    except OSError as error:
        raise JournalError(
            str(path), None, f"can't be read ({error.strerror})", "a journal's folder"
        ) from None
    if not files:
        raise JournalError(str(path), None, f"no file named *{SUFFIX}", "a journal's folder")
    return files


class JournalFile:
    """One journal file, read as a stream.

    Args:
        path: The file.
        note: Called with a text if the end of the file is cut off.

    Attributes:
        path: The file.
        header: The header at its start.
        number: The number of the record read last, from 1.
        closed: Whether the closing record has been read.

    Raises:
        JournalError: The file can't be read, or is not a journal.
    """

    def __init__(self, path: Path, note: Note = warn) -> None:
        """Reads the header."""
        self.path = path
        self.number = 0
        self.closed = False
        self._note = note
        with self._open() as file:
            header = next(self._values(file), None)
            try:
                self.header: Header = decode_header(header)
            except FormatError as error:
                raise self._error(str(error), "a whole header") from None

    def __iter__(self) -> Iterator[Entry | Gap]:
        """The entries and gaps of the file, from the first.

        Raises:
            JournalError: A record is damaged. A record cut off at the end of the file is left out.
        """
        decoder = Decoder(self.header)
        self.number, self.closed = 0, False
        with self._open() as file:
            values = self._values(file)
            next(values)
            for value in values:
                self.number += 1
                if value == 0 and not any(values):
                    self._note(f"{self.path} ends in zeros after record {self.number - 1}")
                    return
                try:
                    said = decoder.record(value)
                except FormatError as error:
                    raise self._error(str(error), "a sound record") from None
                if isinstance(said, Closed):
                    self.closed = True
                elif said is not None:
                    yield said

    def _open(self) -> Any:
        try:
            file = self.path.open("rb")
            start = file.read(len(MAGIC))
        except OSError as error:
            raise self._error(f"can't be read ({error.strerror})", "a journal") from None
        if start != MAGIC:
            file.close()
            raise self._error(f"begins with {start!r}", f"a journal, which begins with {MAGIC!r}")
        return file

    def _values(self, file: Any) -> Iterator[Any]:
        sound = _Sound(file, len(MAGIC))
        unpacker = msgpack.Unpacker(
            sound,
            strict_map_key=False,
            max_buffer_size=_LARGEST_RECORD,
            max_array_len=_LONGEST_LIST,
            max_map_len=_LONGEST_LIST,
        )
        try:
            yield from unpacker
        except (msgpack.UnpackException, TypeError, ValueError) as error:
            self.number += 1
            why = str(error) or type(error).__name__
            raise self._error(f"no msgpack ({why})", "msgpack") from None
        except OSError as error:
            raise self._error(f"reading failed ({error.strerror})", "more records") from None
        left = sound.at - len(MAGIC) - unpacker.tell()
        if sound.zeros:
            self._note(f"{self.path} ends in zeros after record {self.number}")
        elif left:
            self._note(f"{self.path} is cut off: the last {left} bytes are not a whole record")

    def _error(self, found: str, expected: str) -> JournalError:
        return JournalError(str(self.path), self.number or None, found, expected)


class _Sound:
    """A file from an offset on, without the zeros that pad its end.

    If a record runs into the zeros, its own trailing zeros can't be told from the padding, so it
    is cut off where the zeros begin.

    Args:
        file: A seekable binary file.
        at: The offset to start from.

    Attributes:
        at: The offset read up to.
        zeros: The number of zeros at the end; 0 if there are too few to count as padding.
    """

    def __init__(self, file: Any, at: int) -> None:
        """Looks for zeros at the end of the file."""
        size = end = file.seek(0, os.SEEK_END)
        while end > at:
            start = max(at, end - _BLOCK)
            file.seek(start)
            kept = file.read(end - start).rstrip(b"\0")
            end = start + len(kept)
            if kept:
                break
        self.at = file.seek(at)
        self.zeros = size - end if size - end >= _ZEROS else 0
        self._file = file
        self._end = size - self.zeros

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes."""
        data: bytes = self._file.read(min(size, self._end - self.at))
        self.at += len(data)
        return data


def journal_runs(
    path: Path | str, note: Note = warn, whole: bool = True
) -> Iterator[list[JournalFile]]:
    """The files of each run, oldest first.

    A file whose header a crash cut off is skipped with a note.

    Args:
        path: A folder, or one file.
        note: Called with a text for each file skipped.
        whole: Whether an unreadable file is an error; if not, it is skipped too.

    Raises:
        JournalError: As in `JournalFile`; or no file can be read.
    """
    files: list[JournalFile] = []
    damage: list[JournalError] = []
    for each in journal_files(path):
        try:
            files.append(JournalFile(each, note))
        except JournalError as error:
            if _ends_in_header(each):
                note(f"{each} is cut off in its header, and has no records")
                continue
            if whole:
                raise
            damage.append(error)
    if damage and not files:
        raise damage[0]
    for problem in damage:
        note(f"{problem}; the file is left out")
    for _, run in groupby(files, key=lambda file: file.header.run):
        yield list(run)


def _ends_in_header(path: Path) -> bool:
    try:
        data = path.open("rb")
    except OSError:
        return False
    with data as file:
        start = file.read(len(MAGIC))
        if start != MAGIC:
            return MAGIC.startswith(start.rstrip(b"\0"))
        try:
            msgpack.Unpacker(_Sound(file, len(MAGIC))).skip()
        except msgpack.OutOfData:
            return True
        except (msgpack.UnpackException, TypeError, ValueError):
            pass
    return False


def steps_of(
    run: list[JournalFile], note: Note, whole: bool = True
) -> Iterator[tuple[JournalFile, Entry | Gap]]:
    """The steps of a run; a missing file, or one that was not closed, gives a gap of 0 events.

    Args:
        run: The files of the run.
        note: Called with a text for each gap.
        whole: Whether a damaged record is an error; if not, the rest of its file is skipped, since
            the start of the next record can't be found.

    Raises:
        JournalError: As in `JournalFile`.
    """
    before: JournalFile | None = None
    for file in run:
        if before is not None:
            missing = file.header.part - before.header.part - 1
            if missing or not before.closed:
                note(f"events are missing between {before.path.name} and {file.path.name}")
                yield file, Gap(file.header.at_ns, 0)
        steps = iter(file)
        while (step := _next(steps, note, whole)) is not None:
            if isinstance(step, Gap):
                note(f"{step.count} events are missing in {file.path}, before record {file.number}")
            yield file, step
        before = file


def _next(steps: Iterator[Entry | Gap], note: Note, whole: bool) -> Entry | Gap | None:
    try:
        return next(steps, None)
    except JournalError as error:
        if whole:
            raise
        note(f"{error}; the rest of the file is left out")
        return None

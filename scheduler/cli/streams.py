"""The standard streams of a command, which may be closed by others or go to a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Annotated, Any

import typer

from scheduler.address import AddressError
from scheduler.errors import LaxityError

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables, also for errors.")
]

_UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Errors of a full or failing disk, when output is redirected to a file on it."""


class WrongUsage(LaxityError):
    """The command line is wrong, or can't be carried out: as when an input can't be made."""

    code = "usage"


_WRONG_WORDS = frozenset({WrongUsage.code, AddressError.code})
"""The codes of errors in the command line."""


def open_streams() -> None:
    """Opens closed descriptors 0, 1 and 2, so that no socket takes the place of a stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an unprintable character must not end a command
            stream.reconfigure(errors="replace")


def print_json(value: Any) -> None:
    """Prints a value for programs; infinities and NaN are null, as at the HTTP door."""
    print(json.dumps(_expressible(value), indent=2, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Prints one of many values, on a line of its own and at once; see `print_json`."""
    print(json.dumps(_expressible(value), allow_nan=False), flush=True)


def _expressible(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _expressible(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expressible(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def say(text: str) -> None:
    """Prints a message for people to stderr."""
    print(f"laxity: {text}", file=sys.stderr)


def tell(error: LaxityError, as_json: bool = False) -> int:
    """Reports on stderr why a command failed.

    Args:
        error: The error.
        as_json: Print one line of JSON for programs: an object with `error`, `code` and the error's
            details.

    Returns:
        The exit status for the error.
    """
    if as_json:
        told = {"error": str(error), "code": error.code}
        print(json.dumps({**error.detail, **told}, default=str), file=sys.stderr)
    else:
        say(str(error))
    return 2 if error.code in _WRONG_WORDS else 1


@contextmanager
def written() -> Iterator[None]:
    """Ends the process with status 1 if its output can't be written.

    It does so silently if a reader has closed the pipe, as in `| head -1`.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno in _UNWRITTEN:
            say(f"{error.filename or 'the output'} can't be written: {error.strerror}")
        elif error.errno != errno.EPIPE:
            raise
        os._exit(1)  # a normal exit would try again to write what is left

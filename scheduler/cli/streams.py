"""The standard streams of a command: closed by who starts it or reads it, or on a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.errors import LaxityError

_WRONG_WORDS = frozenset({"usage", "invalid_address"})
"""The codes of errors in what was written on the command line."""

_UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""What a full or dying disk says of an output that was sent to a file there."""


def open_streams() -> None:
    """Has something stand at 0, 1 and 2, where a socket would be taken for a standard stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal can't show ends no command
            stream.reconfigure(errors="replace")


def say(text: str) -> None:
    """Tells people something, beside what a command prints."""
    print(f"laxity: {text}", file=sys.stderr)


def tell(error: LaxityError, as_json: bool = False) -> int:
    """Tells why a command can't do what it was asked for, on stderr.

    Args:
        error: Why.
        as_json: Whether a program reads it: then it is one line, an object with `error`, `code`,
            and what else there is to know.

    Returns:
        The exit status that says the same.
    """
    if as_json:
        told = {"error": str(error), "code": error.code}
        print(json.dumps({**error.detail, **told}, default=str), file=sys.stderr)
    else:
        say(str(error))
    return 2 if error.code in _WRONG_WORDS else 1


@contextmanager
def written() -> Iterator[None]:
    """Ends the process with status 1 where what it says can't be written.

    Of a reader that has seen enough, as in `| head -1`, nothing is said.
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
        os._exit(1)  # Python would try again to write what is left

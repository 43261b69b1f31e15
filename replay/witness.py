"""Says which policy was deciding when a process ended in the midst of it.

Nothing in that process can, where foreign code crashed, called `os._exit` or took all memory. So it
is written down before: to a process that reads it and outlives this one, or to a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

_WITNESS = """
import sys
last = ""
for line in sys.stdin:
    last = line.strip()
    if last == "no more":
        sys.exit()
if last:
    print("laxity: the process ended while", last, file=sys.stderr)
"""

_write: Callable[[str], None] = lambda _: None  # noqa: E731
_doing = ""


@contextmanager
def noted(doing: str) -> Iterator[None]:
    """What is done inside, as `policy 'mine.py' was played`, for whoever asks after an end."""
    global _doing
    before, _doing = _doing, doing
    _write(_doing)
    try:
        yield
    finally:
        _doing = before
        _write(_doing)


@contextmanager
def witnessed() -> Iterator[None]:
    """Has stderr told what was `noted` last, should this process end inside, and not as a success.

    That is the one way in which foreign code can say that all went well when it did not.
    """
    global _write
    witness = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WITNESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process, which ends what it does
    )
    assert witness.stdin is not None
    number, before = witness.stdin.fileno(), _write

    def write(doing: str) -> None:
        with suppress(OSError):  # without a witness it only goes untold
            os.write(number, " ".join(doing.split()).encode(errors="replace") + b"\n")

    own, end = os.getpid(), os._exit

    def end_badly(status: int) -> NoReturn:
        end(status or 1 if os.getpid() == own else status)

    _write = write
    os._exit = end_badly
    try:
        yield
    finally:
        os._exit = end
        _write = before
        write("no more")  # the pipe may stay open: processes that a policy has started have it
        witness.stdin.close()
        witness.wait()


def note_in(folder: Path) -> None:
    """Has what is noted stand in a file of this process in a folder, from now on."""
    global _write
    file = folder / str(os.getpid())

    def write(doing: str) -> None:
        with suppress(OSError):
            file.write_text(doing, errors="replace")

    _write = write


def found_in(folder: Path) -> list[str]:
    """What processes have noted there and not done."""
    return sorted({text for file in folder.iterdir() if (text := file.read_text())})

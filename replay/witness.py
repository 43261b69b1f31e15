"""Says which policy was deciding when the process ended.

The process can't say so itself if native code crashed, called `os._exit` or used up all memory. So
it notes each step beforehand: to another process that outlives it, or to a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, NoReturn

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
    """Notes what is done inside, e.g. `policy 'mine.py' was played`, in case the process ends."""
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
    """Reports on stderr what was last `noted` if this process ends inside, and makes it a failure.

    `os._exit(0)` is the one way for a policy to end the process as if all had gone well, so inside
    it gives status 1.
    """
    global _write
    witness = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WITNESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is only for this process
    )
    assert witness.stdin is not None
    number, before = witness.stdin.fileno(), _write

    def write(doing: str) -> None:
        with suppress(OSError):  # without a witness, nothing is reported
            os.write(number, f"{_line(doing)}\n".encode(errors="replace"))

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
        write("no more")  # processes that a policy started may hold the pipe open
        witness.stdin.close()
        witness.wait()


def note_in(path: str) -> None:
    """Appends each note to a file, with the id of this process, from now on."""
    global _write
    number, own = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), os.getpid()

    def write(doing: str) -> None:
        with suppress(OSError):
            os.write(number, f"{own} {_line(doing)}\n".encode(errors="replace"))

    _write = write


def found_in(file: IO[bytes]) -> list[str]:
    """What the processes had noted in a file and not finished."""
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()
    last = dict(line.partition(" ")[::2] for line in lines)
    return sorted({doing for doing in last.values() if doing})


def _line(text: str) -> str:
    return " ".join(text.split())

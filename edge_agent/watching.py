"""Tells when files change, however that is done: written to, replaced, or a link to them turned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import watchfiles

_LOOK_S = 1.0
"""How often files are looked at where nothing is heard of folders: on a network's share, and while
they come to be watched anew."""

_MOST_LINKS = 40
"""As many as the system follows; more are a circle."""

Stamp = tuple[int, ...]


class FileWatch:
    """Files whose changes are told of, from the moment that this is made.

    The folders are watched, since editors replace files rather than write to them, and so are those
    of all links on the way: a ConfigMap of Kubernetes changes by a link beside the file's own.

    Args:
        files: The files; they need not be there.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._paths = [file.absolute() for file in files]
        self._known = _stamps(self._paths)

    def run(self, changed: Callable[[], object], stopping: threading.Event) -> None:
        """Calls back, from this thread, after any of the files has changed, until it is to stop."""
        while not stopping.is_set():
            folders = _watched(self._paths)
            for _ in _hints(folders, stopping):
                now = _stamps(self._paths)
                if now != self._known:
                    self._known = now
                    changed()
                if _watched(self._paths) != folders:
                    break


def _hints(folders: Iterable[Path], stopping: threading.Event) -> Iterator[object]:
    """Yields whenever something has happened in one of the folders, and every second."""
    try:
        yield from watchfiles.watch(
            *folders,
            debounce=100,
            stop_event=stopping,
            rust_timeout=int(_LOOK_S * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=False,
        )
    except (OSError, RuntimeError):  # one has just gone, or the system watches no more of them
        stopping.wait(_LOOK_S)
        yield None


def _watched(paths: Iterable[Path]) -> dict[Path, Stamp]:
    """The folders that say which files the paths mean, and which folders these are."""
    found = {folder: _stamp(folder) for path in paths for folder in _folders(path)}
    return {folder: stamp[:2] for folder, stamp in found.items() if stamp}


def _folders(path: Path) -> Iterator[Path]:
    yield path.parent
    for _ in range(_MOST_LINKS):
        link = next((part for part in (path, *path.parents) if part.is_symlink()), None)
        if link is None:
            return
        path = link.parent / link.readlink() / path.relative_to(link)
        yield link.parent
        yield path.parent


def _stamps(paths: Iterable[Path]) -> list[Stamp]:
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> Stamp:
    """What tells one state of a file from another; empty where there is none to be seen."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

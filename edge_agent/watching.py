"""Notice when files change, by being written or replaced or by a changed link to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import watchfiles

from scheduler.files import stamp_of

_LOOK_S = 1.0
"""How often files are polled, in seconds, where folders give no events: on a network share, and
between two watches."""

_MOST_LINKS = 40
"""The most links that the system follows; more are a loop."""

Stamp = tuple[int, ...]


class FileWatch:
    """Watches files for changes, from its creation on.

    It watches their folders, because editors replace files instead of writing to them, and the
    folders of all links on the way: a Kubernetes ConfigMap changes through a link next to the
    file's own.

    Args:
        files: The files; they need not exist.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._paths = [file.absolute() for file in files]
        self._known = _stamps(self._paths)

    def run(self, changed: Callable[[], object], stopping: threading.Event) -> None:
        """Call `changed` in this thread whenever a file has changed, until `stopping` is set."""
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
    """Yield whenever something has happened in one of the folders, and every second."""
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
    except (OSError, RuntimeError):  # a folder has just gone, or the watch limit is reached
        stopping.wait(_LOOK_S)
        yield None


def _watched(paths: Iterable[Path]) -> dict[Path, Stamp]:
    """The folders that decide which files the paths name, with the identity of each folder."""
    found = {folder: stamp_of(folder) for path in paths for folder in _folders(path)}
    return {folder: stamp[:2] for folder, stamp in found.items() if stamp}


def _folders(path: Path) -> Iterator[Path]:
    yield path.parent
    for _ in range(_MOST_LINKS):
        try:
            link = next((part for part in (path, *path.parents) if part.is_symlink()), None)
            if link is None:
                return
            path = link.parent / link.readlink() / path.relative_to(link)
        except OSError:  # a link is being replaced, or is in a folder that can't be entered
            return
        yield link.parent
        yield path.parent


def _stamps(paths: Iterable[Path]) -> list[Stamp]:
    return [stamp_of(path) for path in paths]

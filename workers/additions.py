"""Notice models that are added to the repository while the box runs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from pathlib import Path

from workers.model_files import Looks, looks_of
from workers.repository import Repository, RepositoryError, load_repository


class Additions:
    """Watches everything in a repository's folder of which no model is served.

    Something new counts once it looked the same twice in a row, because copying takes time. So does
    a model that was left out for a problem and has been changed since, or removed.
    """

    def __init__(self, root: Path) -> None:
        """Look for the first time; must come before the repository is read."""
        self._root = root
        self._seen = self._settled = self._read = _entries(root) or {}

    def look(self, served: Set[str]) -> bool:
        """Whether something has settled that was not read as it is now.

        Args:
            served: The names of the models that are served; these are not looked at.
        """
        before, found = self._seen, _entries(self._root, served)
        if found is None:
            return False
        self._seen = found
        self._settled = {name: looks for name, looks in found.items() if before.get(name) == looks}
        gone = self._read.keys() - before.keys() - found.keys() - served
        new = [name for name, look in self._settled.items() if look != self._read.get(name)]
        return bool(gone or new)

    def read(self, known: Repository) -> Repository:
        """Read what has settled.

        Args:
            known: What was read before; its models stay as they are.
        """
        found = _entries(self._root, known.models)
        if found is None:
            return known
        settled = {name: look for name, look in self._settled.items() if found.get(name) == look}
        try:
            added = load_repository(self._root, settled)
        except RepositoryError:  # it has gone meanwhile; the next looks will tell
            return known
        self._read = settled
        left = [problem for problem in known.problems if problem.model in known.models]
        # A loose file that has the name of a served model is told in both.
        problems = dict.fromkeys((*left, *added.problems))
        return Repository({**known.models, **added.models}, tuple(problems))


def _entries(root: Path, besides: Container[str] = ()) -> Mapping[str, Looks] | None:
    """How each entry of a folder looks; None if the folder can't be read."""
    try:
        paths = [p for p in root.iterdir() if p.name not in besides and p.name[0] != "."]
    except OSError:
        return None
    return {path.name: _looks(path) for path in paths}


def _looks(path: Path) -> Looks:
    try:
        return looks_of(path)
    except OSError:  # it changes just now, or may not be read
        return ()

"""Notice models that are added to the repository, or replaced in it, while the box runs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.model import Model, Problem
from workers.model_files import Looks, looks_of
from workers.repository import Repository, RepositoryError, load_repository


@dataclass(frozen=True, slots=True)
class News:
    """What was read of a repository that has changed.

    Attributes:
        models: The models that are new, or not as they were read before.
        problems: All problems of the repository, old ones included.
    """

    models: tuple[Model, ...]
    problems: tuple[Problem, ...]


class Changes:
    """Watches everything in a repository's folder.

    Something new or changed counts once it looked the same twice in a row, because copying takes
    time.
    """

    def __init__(self, root: Path) -> None:
        """Look for the first time; must come before the repository is read."""
        self._root = root
        self._seen = self._settled = self._read = _entries(root) or {}

    def look(self) -> bool:
        """Whether something has settled that was not read as it is now, or has gone."""
        before, found = self._seen, _entries(self._root)
        if found is None:
            return False
        self._seen = found
        self._settled = {name: looks for name, looks in found.items() if before.get(name) == looks}
        gone = self._read.keys() - before.keys() - found.keys()
        return bool(gone) or any(self._read.get(name) != to for name, to in self._settled.items())

    def is_as_read(self, model: str) -> bool:
        """Whether the files of a model look as they did when they were read."""
        return _looks(self._root / model) == self._read.get(model)

    def read(self, known: Repository) -> News:
        """Read what has settled.

        Args:
            known: What was read before; its models stay as they are.
        """
        found = _entries(self._root)
        if found is None:
            return News((), known.problems)
        settled = {name: look for name, look in self._settled.items() if found.get(name) == look}
        changed = {name for name, look in settled.items() if self._read.get(name) != look}
        # What can't be served is read again too, because only then its problems are told again.
        due = {name for name in settled if name in changed or name not in known.models}
        try:
            read = load_repository(self._root, due)
        except RepositoryError:  # it has gone meanwhile; the next looks will tell
            return News((), known.problems)
        copied = {name: look for name, look in self._read.items() if name in found}
        self._read = {**copied, **settled}
        # A loose file that has the name of a served model is told in both.
        problems = dict.fromkeys(_problems(known, read, due, found))
        new = (model for name, model in read.models.items() if model != known.models.get(name))
        return News(tuple(new), tuple(problems))


def _problems(
    known: Repository, read: Repository, due: Container[str], found: Container[str]
) -> Iterator[Problem]:
    for problem in known.problems:
        if problem.model in known.models and problem.model not in due:
            yield problem
    for problem in read.problems:
        # A loose file beside the folder of its name, which is not due, says nothing about that.
        name, is_due = problem.model, problem.model in due
        is_kept = is_due and name in known.models and name not in read.models
        yield still_served(name, problem.reason) if is_kept else problem
    told = {problem.model for problem in read.problems}
    for name in known.models:
        # Where its folder was, there may be a file by now, of which nothing is said.
        if name not in found or (name in due and name not in read.models and name not in told):
            yield still_served(name, "its folder is gone")


def still_served(model: str, reason: str) -> Problem:
    """A problem with the files of a model that is served as they were before."""
    return Problem(model, f"{reason}; it is served as its files were before")


def _entries(root: Path) -> Mapping[str, Looks] | None:
    """How each entry of a folder looks; None if the folder can't be read."""
    try:
        paths = [path for path in root.iterdir() if path.name[0] != "."]
    except OSError:
        return None
    return {path.name: _looks(path) for path in paths}


def _looks(path: Path) -> Looks:
    try:
        return looks_of(path)
    except OSError:  # it changes just now, or may not be read
        return ()

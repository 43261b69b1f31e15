"""YAML as people write it: `2e-5` is a number, and a repeated key is an error."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import yaml

MALFORMED = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises for text that is not YAML, or has impossible values such as 2024-02-30."""

_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with exponents in numbers as in YAML 1.2, and without repeated keys.

    PyYAML follows YAML 1.1, in which such numbers need a point and a sign (2.0e-5, 1.0e+9) and are
    text otherwise. It would silently keep the last of several equal keys; this loader refuses them.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """Constructs a document as PyYAML does, after checking for repeated keys."""
        if repeated := next(repeated_keys(node), None):
            key = repeated.node
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key.value}' appears twice", key.start_mark
            )
        return super().construct_document(node)


class Repeated(NamedTuple):
    """A key that its mapping already has.

    Attributes:
        place: Where it is in the document: keys and item indices.
        node: The key.
        first_line: The line of its first occurrence, from 1.
    """

    place: tuple[str | int, ...]
    node: yaml.Node
    first_line: int


def repeated_keys(node: yaml.Node | None) -> Iterator[Repeated]:
    """All repeated keys of a document, before merge keys are resolved."""
    return _repeated(node, (), set())


def _repeated(
    node: yaml.Node | None, place: tuple[str | int, ...], seen: set[int]
) -> Iterator[Repeated]:
    # With an alias, a node may contain itself.
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*place, index), seen)
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[Hashable, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here, said = (*place, name), {name, _meant(key)}
            if first := [first_lines[each] for each in said if each in first_lines]:
                yield Repeated(here, key, min(first))
            for each in said:
                first_lines.setdefault(each, line)
            yield from _repeated(value, here, seen)


def _meant(key: yaml.Node) -> Hashable:
    """The key's Python value, so that 1, 0x1 and true are equal; its text if it can't be a key."""
    if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
        meant: Hashable = yaml.constructor.SafeConstructor().construct_object(key)
        return meant
    return str(key.value)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load(text: str) -> Any:
    """Parses YAML text.

    Raises:
        Exception: One of `MALFORMED`.
    """
    return yaml.load(text, Loader)  # Loader is a SafeLoader


def explained(error: Exception, text: str) -> tuple[str, int | None]:
    """What is wrong with a text, in one line that gives the column, and the line where it is.

    Args:
        error: One of `MALFORMED`, raised for the text.
        text: The text.

    Returns:
        The message, and the line from 1; column and line are left out where they are not known.
    """
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"the character U+{ord(text[error.position]):04X}", line
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, begin = error.problem_mark, error.context_mark
        told = f"{error.problem} (column {mark.column + 1})"
        if begin is not None and begin.line != mark.line:  # an open bracket shows far below it
            told += f", {error.context} from line {begin.line + 1} on"
        return told, mark.line + 1
    return str(error), None

"""YAML as people write it: `2e-5` is a number, and a key stands once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import yaml

MALFORMED = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises for texts that are no YAML, or hold such values as 2024-02-30."""

_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, where numbers with an exponent are as in YAML 1.2.

    In YAML 1.1, which it follows, they need a point and a sign (2.0e-5, 1.0e+9)
    and are text without. A repeated key, of which it would keep the last without a word, is
    refused.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """As in PyYAML."""
        if repeated := next(repeated_keys(node), None):
            key = repeated.node
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key.value}' appears twice", key.start_mark
            )
        return super().construct_document(node)


class Repeated(NamedTuple):
    """A key that its mapping has already.

    Attributes:
        place: Where in the document: keys, and numbers of items.
        node: The key.
        first_line: On which line it was first, from 1.
    """

    place: tuple[str | int, ...]
    node: yaml.Node
    first_line: int


def repeated_keys(node: yaml.Node | None) -> Iterator[Repeated]:
    """All keys of a document that stand twice, before anything is merged into a mapping."""
    return _repeated(node, (), set())


def _repeated(
    node: yaml.Node | None, place: tuple[str | int, ...], seen: set[int]
) -> Iterator[Repeated]:
    # An alias may make a node contain itself.
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
    """What a key is for Python: 1, 0x1 and true are one; of what can be none, its text."""
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
    """What a text says.

    Raises:
        Exception: One of `MALFORMED`.
    """
    return yaml.load(text, Loader)  # a SafeLoader

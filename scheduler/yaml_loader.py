"""YAML as people write it: `2e-5` is a number, and a key stands once."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

MALFORMED = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises for texts that are no YAML, or hold such values as 2024-02-30."""


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, where numbers with an exponent are as in YAML 1.2.

    In YAML 1.1, which it follows, they need a point and a sign (2.0e-5, 1.0e+9)
    and are text without. A repeated key, of which it would keep the last without a word, is
    refused.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As in PyYAML."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the loader below refuses it, with its place in the text
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


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

"""Add a variant to an owner's `model.yaml` and keep its comments and order."""

from __future__ import annotations

from typing import Any

import yaml

from workers.model_yaml import ModelFileError, parse_model_file


def model_file_text(variants: dict[str, dict[str, Any]], text: str = "") -> str:
    """The text of a `model.yaml` that names variants.

    Args:
        variants: The entries by name.
        text: A valid `model.yaml` that names none; empty if there is no such file.

    Raises:
        ModelFileError: The text is written in a form (such as one in braces) that cannot be
            extended.
    """
    named = _spelled({"variants": variants})
    if not text:
        return named
    new = f"{text.rstrip()}\n{named}"
    try:
        whole = list(parse_model_file(new).variants) == list(variants)
    except ModelFileError:
        whole = False
    if not whole:
        raise ModelFileError(f"cannot add to model.yaml; write it by hand: {named.strip()}")
    return new


def with_variant(text: str, after: str, name: str, entry: dict[str, Any]) -> str:
    """Insert a variant after another one in the order of preference.

    Args:
        text: A valid `model.yaml`.
        after: A variant in it.
        name: The new variant's name.
        entry: Its keys and values.

    Raises:
        ModelFileError: There is no variant `after`, `name` is taken, or the variants are written in
            a form (such as an alias) that cannot be extended.
    """
    before = parse_model_file(text).variants
    if name in before:
        raise ModelFileError(f"there is a variant '{name}' already")
    variants = _variants_of(yaml.compose(text, Loader=yaml.SafeLoader))
    found = {key.value: (key, value) for key, value in variants.value}
    if after not in found:
        raise ModelFileError(f"there is no variant '{after}'")
    key, value = found[after]
    end, line = _end_of(value), _spelled({name: entry}).strip()
    if variants.flow_style:
        new = f"{text[:end]}, {line}{text[end:]}"
    else:
        newline = text.find("\n", end)
        end = len(text) if newline < 0 else newline  # after a comment on the same line
        new = f"{text[:end]}\n{' ' * key.start_mark.column}{line}{text[end:]}"
    order = list(before)
    order.insert(order.index(after) + 1, name)
    if list(parse_model_file(new).variants) != order:
        raise ModelFileError(f"cannot add to these variants; write it by hand: {line}")
    return new


def _variants_of(document: Any) -> Any:
    return next(value for key, value in document.value if key.value == "variants")


def _end_of(node: Any) -> int:
    """Where a node's own text ends; a block mapping's end mark is only at the next token."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return _end_of(node.value[-1][1])
    end: int = node.end_mark.index
    return end


def _spelled(value: dict[str, Any]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=10_000))

"""Reads YAML so that every mistake in it is reported with its line and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from scheduler.config.types import Unquoted
from scheduler.core.names import did_you_mean
from scheduler.errors import LaxityError
from scheduler.files import hint_beside, read_regular
from scheduler.yaml_loader import MALFORMED, Loader, Repeated, explained, repeated_keys

Location = Sequence[str | int]

_FORMS = {
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping",
    "path_type": "should be a path",
    "too_short": "should have at least 1 item",
}
"""Pydantic's error types that speak of Python types, in terms of YAML."""

_AMOUNT = re.compile(r"[\d.]+\s*[A-Za-z]+")
_UNIT = re.compile(r"_(ms|s|kb|mb|gb|w)$")


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        place: The key, e.g. `devices[0].cores`; empty for the file as a whole.
        message: What is wrong, and what would be accepted.
        line: The line in the file, from 1; None if it is not in a file.
    """

    place: str
    message: str
    line: int | None = None


class ConfigError(LaxityError):
    """A configuration is invalid; the message has one line for each mistake.

    Attributes:
        source: The name of the file.
        problems: The mistakes, in the order of the file.
    """

    code = "invalid_config"

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        """Writes each problem as `FILE:LINE: PLACE: MESSAGE`."""
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(self._line_of(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.source, self.problems))

    def _line_of(self, problem: Problem) -> str:
        source = self.source if problem.line is None else f"{self.source}:{problem.line}"
        return ": ".join(part for part in (source, problem.place, problem.message) if part)


def read_yaml_file(path: Path) -> tuple[dict[str, Any], yaml.Node | None]:
    """Like `read_yaml`, for a file.

    Raises:
        ConfigError: It can't be read, or as in `read_yaml`.
    """
    try:
        text = read_regular(path).decode()
    except OSError as error:
        told = f"can't be read: {error.strerror}{hint_beside(path)}"
        raise ConfigError(str(path), [Problem("", told)]) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise ConfigError(str(path), [Problem("", message)]) from None
    except ValueError as error:  # as of a name with a null byte
        raise ConfigError(repr(str(path)), [Problem("", f"can't be read: {error}")]) from None
    return read_yaml(text, str(path))


def read_yaml(text: str, source: str) -> tuple[dict[str, Any], yaml.Node | None]:
    """Parses one YAML mapping.

    Returns:
        The mapping, and the node that has the lines of its keys, which is None for an empty
        document.

    Raises:
        ConfigError: The text isn't YAML, isn't a mapping, or repeats a key in one mapping.
    """
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if twice := [_given_twice(repeated) for repeated in repeated_keys(node)]:
            raise ConfigError(source, twice)
        data = loader.construct_document(node) if node else {}
    except MALFORMED as error:
        message, line = explained(error, text)
        raise ConfigError(source, [Problem("", f"not YAML: {message}", line)]) from None
    if data is None:
        return {}, None
    if not isinstance(data, dict):
        message = f"should be a mapping of keys to values; this is a {_kind(data)}"
        raise ConfigError(source, [Problem("", message, 1)])
    return data, node


def problems_of(
    error: ValidationError, model: type[BaseModel], node: yaml.Node | None
) -> list[Problem]:
    """Translates pydantic's errors into problems in terms of the file."""
    problems = []
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # pydantic counts only the valid items
        location, line = _locate(item["loc"], node)
        problems.append(Problem(_place(location), _message(item, model, location), line))
    return problems


def problem_at(file: Path | None, location: Location, message: str) -> Problem:
    """A problem that is only found when a value of a file is used, with that value's line."""
    node = None
    if file is not None:
        with suppress(ConfigError):  # the file has changed since
            node = read_yaml_file(file)[1]
    found, line = _locate(location, node)
    return Problem(_place(found), message, line)


def _given_twice(repeated: Repeated) -> Problem:
    message = f"given twice; it is already on line {repeated.first_line}"
    return Problem(_place(repeated.place), message, repeated.node.start_mark.line + 1)


def _locate(location: Location, node: yaml.Node | None) -> tuple[list[str | int], int | None]:
    """Follows pydantic's location through the file, and omits parts that the file doesn't have.

    Pydantic's locations include the tag of the chosen branch of a union, and an item index even if
    a single value was written for a list of one.
    """
    found: list[str | int] = []
    line: int | None = None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == str(part)]
            found.append(str(part))
            if pairs:
                line = pairs[-1][0].start_mark.line + 1
            node = pairs[-1][1] if pairs else None
        elif isinstance(node, yaml.SequenceNode):
            if isinstance(part, int):
                found.append(part)
                node = node.value[part]
                line = node.start_mark.line + 1
        elif node is None:
            found.append(part)
    return found, line


def _place(location: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _message(item: Mapping[str, Any], model: type[BaseModel], location: Location) -> str:
    kind, value = item["type"], item["input"]
    is_secret = _may_be_secret(model, location)
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(str(location[-1]), _model_at(model, location[:-1]))
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "model_type":
        fields = _model_at(model, location).model_fields
        text = f"should be a mapping with the keys {', '.join(fields)}"
        if value is True and not any(field.is_required() for field in fields.values()):
            text += " ({} takes their defaults)"
        elif value is False and "enabled" in fields:
            text += " (here {enabled: false})"
        if is_secret:
            return text
        meant = f"; did you mean {{id: {value}}}?" if "id" in fields and _is_id(value) else ""
        return f"{text}; got {_shortened(value)}{meant}"
    key = str(location[-1]) if location else ""
    text = _FORMS.get(kind) or str(item["msg"]).replace("Input should be", "should be")
    if is_secret:
        return text
    said = f"{text}; got {_shortened(value)}"
    if kind == "literal_error":
        meant = did_you_mean(str(value), re.findall(r"'([^']*)'", text), "")
        return f"{said}; {meant}" if meant else said
    if kind in ("int_type", "float_type") and _AMOUNT.fullmatch(str(value)) and _UNIT.search(key):
        return f"{said}; the number alone, as the key names the unit"
    return said


def _is_id(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w:-]+", value) is not None


def _unknown_key(key: str, model: type[BaseModel]) -> str:
    known = list(model.model_fields)
    word = key.lower().replace("-", "_")
    return f"unknown key; {did_you_mean(word, known, 'known here: ' + ', '.join(known))}"


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    for part in location:
        if isinstance(part, str):
            field = model.model_fields.get(part)  # None for an item of a set
            model = (field and _model_in(field.annotation)) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Literal["auto"] | tuple[DeviceConfig, ...]`."""
    arguments = get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in arguments:
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _may_be_secret(model: type[BaseModel], location: Location) -> bool:
    """Whether a value, or something below it, may be a secret and must not be quoted."""
    for part in location:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is None:  # an item index, or pydantic's tag of a union's branch
            continue
        inner = _model_in(field.annotation)
        if inner is None:
            return _is_unquoted(field.annotation) or _is_unquoted(field.metadata)
        model = inner
    return bool(location) and _is_unquoted(model)


def _is_unquoted(annotation: Any) -> bool:
    if isinstance(annotation, list):
        return any(map(_is_unquoted, annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return any(_is_unquoted(f.annotation) or _is_unquoted(f.metadata) for f in fields)
    return isinstance(annotation, Unquoted) or any(map(_is_unquoted, get_args(annotation)))


def _shortened(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(data: Any) -> str:
    # Not quoted: it may be a token, if the wrong file was named.
    return "list" if isinstance(data, list) else "single value"

"""The configuration of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, ValidationInfo, model_validator

from scheduler.config.types import Section, absolute


class PolicyConfig(Section):
    """The rule that decides which request runs when and where."""

    model_config = ConfigDict(extra="allow")

    name: str = "goodput"
    """A policy's name; the other keys of this section are that policy's options."""

    @model_validator(mode="before")
    @classmethod
    def _files_have_whole_paths(cls, data: Any, info: ValidationInfo) -> Any:
        return _placed(data, info) if isinstance(data, Mapping) else data

    @property
    def options(self) -> dict[str, Any]:
        """The policy's options, which the policy itself checks."""
        return dict(self.model_extra or {})


def _by_name(value: object) -> object:
    """Reads `policy: edf` as `policy: {name: edf}`."""
    return {"name": value} if isinstance(value, str) else value


PolicyOrName = Annotated[
    PolicyConfig, BeforeValidator(_by_name, json_schema_input_type=str | PolicyConfig)
]


def _placed(policy: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Makes the paths of policy files absolute, also those of wrapped policies."""
    placed = dict(policy)
    for key, value in policy.items():
        if isinstance(value, Mapping) and "name" in value:
            placed[key] = _placed(value, info)
        elif key in ("name", "inner") and isinstance(value, str):
            where, colon, class_name = policy_place(value)
            if where.endswith(".py"):
                placed[key] = f"{absolute(Path(where), info)}{colon}{class_name}"
    return placed


def policy_place(name: str) -> tuple[str, str, str]:
    """Splits a name into the policy's location, a colon and its class.

    The colon and the class are empty if the name has no class.
    """
    where, colon, class_name = name.rpartition(":")
    return (where, colon, class_name) if colon else (name, "", "")

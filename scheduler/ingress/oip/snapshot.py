"""The state of the box as a door process knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the box.

    Attributes:
        name: Its name in requests.
        batched: Whether its tensors have a batch dimension before the shapes.
        max_batch: How many items may share a batch.
        inputs: A map of name, dtype and shape for each; None in a shape is a free dimension.
        outputs: The same for outputs.
        variants: The targets that can run each variant.
        loaded: Whether requests for it are accepted.
    """

    name: str
    batched: bool
    max_batch: int
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    variants: dict[str, tuple[str, ...]]
    loaded: bool

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> ModelInfo:
        """The model that an entry of the answer to `models` describes."""
        return cls(
            described["name"],
            described["batched"],
            described["max_batch"],
            tuple(described["inputs"]),
            tuple(described["outputs"]),
            {
                variant["name"]: tuple(target["target"] for target in variant["targets"])
                for variant in described["variants"]
            },
            described["loaded"],
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the box a moment ago.

    Attributes:
        models: The served models by name.
        problems: Other models of the repository, each with why it is not served.
        up: The targets that are up.
        draining: Whether new requests are refused.
        policy: The policy's name and options.
    """

    models: dict[str, ModelInfo]
    problems: tuple[tuple[str, str], ...]
    up: frozenset[str]
    draining: bool
    policy: dict[str, Any]

    @classmethod
    def of(cls, models: Mapping[str, Any], status: Mapping[str, Any]) -> Snapshot:
        """The state that the answers to `models` and `status` describe."""
        return cls(
            {described["name"]: ModelInfo.of(described) for described in models["models"]},
            tuple((p["model"], p["reason"]) for p in models["problems"]),
            frozenset(target["id"] for target in status["targets"] if target["up"]),
            status["draining"],
            status["policy"],
        )

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return bool(self.up) and not self.draining

    def model_ready(self, info: ModelInfo, variant: str) -> bool:
        """Whether a variant of a model can be served; if it is empty, whether any can."""
        named = {variant: info.variants[variant]} if variant else info.variants
        return self.ready and info.loaded and any(set(ids) & self.up for ids in named.values())

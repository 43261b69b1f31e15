"""Describes the box and its models, in the forms of the protocol and of Triton."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Any

from scheduler.core.signature import STRING
from scheduler.datatypes import DATATYPES
from scheduler.encodings.codec import accepted
from scheduler.encodings.text import ENCODING_EXTENSION
from scheduler.ingress.oip.snapshot import ModelInfo, Snapshot
from scheduler.tenants import Tenant

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
    "trace",
)
PLATFORM = "laxity"

_VERSION = metadata.version("laxity")  # on disk there may be another one later


def server_metadata() -> dict[str, Any]:
    """Name, version and extensions."""
    return {
        "name": "laxity",
        "version": _VERSION,
        "extensions": [*EXTENSIONS, *(ENCODING_EXTENSION + name for name in accepted())],
    }


def model_metadata(info: ModelInfo) -> dict[str, Any]:
    """A model's tensors, and its variants as versions; -1 is a free dimension."""
    return {
        "name": info.name,
        "versions": list(info.variants),
        "platform": PLATFORM,
        "inputs": [_tensor(spec, info.batched) for spec in info.inputs],
        "outputs": [_tensor(spec, info.batched) for spec in info.outputs],
    }


def model_config(info: ModelInfo) -> dict[str, Any]:
    """A model in the form of Triton's model configuration."""
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"all": {}},
        "max_batch_size": info.max_batch if info.batched else 0,
        "input": [_config_tensor(spec) for spec in info.inputs],
        "output": [_config_tensor(spec) for spec in info.outputs],
    }


def repository_index(snapshot: Snapshot, tenant: Tenant, ready_only: bool) -> list[dict[str, str]]:
    """Every variant of every model that the tenant may use; unserved ones with the reason."""
    entries = []
    for name in visible(snapshot.models, tenant):
        info = snapshot.models[name]
        for variant in info.variants:
            ready = snapshot.model_ready(info, variant)
            reason = "" if ready else ("no target is up" if info.loaded else "unloaded")
            state = "READY" if ready else "UNAVAILABLE"
            entries.append({"name": name, "version": variant, "state": state, "reason": reason})
    for name, reason in snapshot.problems:
        if name not in snapshot.models and visible([name], tenant):
            entry = {"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason}
            if entry not in entries:
                entries.append(entry)
    return [entry for entry in entries if entry["state"] == "READY" or not ready_only]


def visible(models: Iterable[str], tenant: Tenant) -> list[str]:
    """The models that a tenant may use."""
    return [name for name in sorted(models) if tenant.sees(name)]


def statistics_of(
    counted: list[dict[str, Any]], tenant: Tenant, model: str = "", version: str = ""
) -> list[dict[str, Any]]:
    """Statistics of the models that a tenant may use, or of one, without laxity's own fields."""
    seen = set(visible({entry["name"] for entry in counted}, tenant))
    return [
        {key: value for key, value in entry.items() if key != "durations"}
        for entry in counted
        if entry["name"] in seen
        and (not model or entry["name"] == model)
        and (not version or entry["version"] == version)
    ]


def _sizes(spec: dict[str, Any]) -> list[int]:
    return [-1 if size is None else size for size in spec["shape"]]


def _tensor(spec: dict[str, Any], batched: bool) -> dict[str, Any]:
    shape = [-1, *_sizes(spec)] if batched else _sizes(spec)
    return {"name": spec["name"], "datatype": DATATYPES[spec["dtype"]], "shape": shape}


def _config_tensor(spec: dict[str, Any]) -> dict[str, Any]:
    text = spec["dtype"] == STRING
    return {
        "name": spec["name"],
        "data_type": "TYPE_STRING" if text else f"TYPE_{DATATYPES[spec['dtype']]}",
        "dims": _sizes(spec),
    }

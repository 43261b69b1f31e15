"""The models for other servers; runs in their environments, without laxity."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(string)": "bytes"}
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Served:
    """A model.

    Attributes:
        name: Its name.
        inputs: The name, NumPy dtype and item shape of each input.
        outputs: Likewise of each output.
        run: Turns a batch of inputs into a batch of outputs.
    """

    name: str
    inputs: list[tuple[str, str, list[int]]]
    outputs: list[tuple[str, str, list[int]]]
    run: Callable[[Arrays], Arrays]


def served(spec: Mapping[str, Any]) -> Served:
    """Make the model of an entry: `name` and `path` of an ONNX file, or `name` and `latency`."""
    if "path" in spec:
        return _onnx(spec["name"], spec["path"])
    return _emulated(spec["name"], **spec["latency"])


def read_models(file: Path) -> list[Served]:
    """Read every model of a file of entries."""
    return [served(spec) for spec in json.loads(file.read_text())]


def _onnx(name: str, path: str) -> Served:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs, outputs = (
        [(node.name, _DTYPES[node.type], _sizes(node.shape[1:])) for node in nodes]
        for nodes in (session.get_inputs(), session.get_outputs())
    )
    names = [output for output, _, _ in outputs]

    def run(arrays: Arrays) -> Arrays:
        given = {name: _decoded(array) for name, array in arrays.items()}
        return dict(zip(names, map(_encoded, session.run(names, given)), strict=True))

    return Served(name, inputs, outputs, run)


def _sizes(shape: Sequence[Any]) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in shape]


def _decoded(array: Any) -> Any:
    """Convert text to the form that the library takes; leave other dtypes unchanged."""
    if array.dtype.kind not in "OSU":
        return array
    if array.dtype.kind == "U":
        return array.astype(object)
    return np.char.decode(array.astype("S"), "utf-8").astype(object)


def _encoded(array: Any) -> Any:
    """Convert text to the form that servers take; leave other dtypes unchanged."""
    return np.char.encode(array.astype("U"), "utf-8") if array.dtype == object else array


def _emulated(name: str, base_ms: float, per_item_ms: float, jitter: float) -> Served:
    """A model that takes time like laxity's emulated device, one batch at a time; `y` is zero."""
    device, rng = threading.Lock(), random.Random(1)

    def run(arrays: Arrays) -> Arrays:
        items = len(arrays["x"])
        with device:
            time.sleep((base_ms + per_item_ms * items) * rng.lognormvariate(0, jitter) / 1e3)
        return {"y": np.zeros((items, 1), np.float32)}

    return Served(name, [("x", "float32", [-1])], [("y", "float32", [-1])], run)

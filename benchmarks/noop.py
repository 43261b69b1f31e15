"""Models that do nothing, so that a benchmark measures only the overhead around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


def make_models(root: Path) -> None:
    """Make a repository with `noop` (the first element of a vector) and `echo` (the vector)."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])
    first = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    same = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k"])
    bounds = [
        onnx.numpy_helper.from_array(np.array([value]), name)
        for name, value in (("start", 0), ("end", 1), ("axis", 1))
    ]
    slice_ = helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"])
    identity = helper.make_node("Identity", ["x"], ["y"])
    _save(helper.make_graph([slice_], "noop", [x], [first], bounds), root / "noop")
    _save(helper.make_graph([identity], "echo", [x], [same]), root / "echo")


def make_source(root: Path, name: str, size: int) -> None:
    """Make a model that takes one byte and gives so many, all the same."""
    one = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 1])
    many = helper.make_tensor_value_info("y", TensorProto.UINT8, ["n", size])
    shape = onnx.numpy_helper.from_array(np.array([1, size]), "shape")
    expand = helper.make_node("Expand", ["x", "shape"], ["y"])
    _save(helper.make_graph([expand], name, [one], [many], [shape]), root / name)


def _save(graph: onnx.GraphProto, folder: Path) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")

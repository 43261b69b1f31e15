"""Models that take a known number of matrix products, and for which batching pays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 384
"""The size of the square matrices, which fit into a core's own cache."""

TINY = 1e-30
"""The weight of the per-batch result in each item's answer, too small to change it."""


def make_busy(root: Path, name: str, values: int, base: int, per_item: int, max_batch: int) -> None:
    """Add a model to a repository.

    Args:
        root: The repository.
        name: The model's name.
        values: The number of floats in its input `x`.
        base: Matrix products per batch, whatever its size.
        per_item: Matrix products per item.
        max_batch: The largest batch.
    """
    folder = root / name
    folder.mkdir(parents=True)
    onnx.save(_model(name, values, base, per_item), folder / "model.onnx")
    text = f"variants: {{only: {{file: model.onnx}}}}\nmax_batch: {max_batch}\n"
    (folder / "model.yaml").write_text(text)


def _model(name: str, values: int, base: int, per_item: int) -> onnx.ModelProto:
    constants = {
        "w": np.eye(WIDTH, dtype=np.float32),
        "one": np.array([1]),
        "zero": np.array([0]),
        "last": np.array([1]),
        "cube": np.array([1, WIDTH, WIDTH]),
        "scalar": np.array([-1, 1, 1]),
        "tiny": np.array([TINY], np.float32),
    }
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "last"], ["own"]),
        helper.make_node("Reshape", ["own", "scalar"], ["each"]),
        helper.make_node("Slice", ["each", "zero", "one", "zero"], ["common"]),
        *_chain("common", per_batch := "base", base),
        *_chain("each", per_each := "item", per_item),
        helper.make_node("Mul", [per_batch, "tiny"], ["nothing"]),
        helper.make_node("Add", [per_each, "nothing"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", values])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _chain(start: str, end: str, count: int) -> list[onnx.NodeProto]:
    """Nodes that multiply by the unit matrix `count` times and take the largest element."""
    products = [
        helper.make_node("MatMul", [f"{end}{i}", "w"], [f"{end}{i + 1}"]) for i in range(count)
    ]
    return [
        helper.make_node("Expand", [start, "cube"], [f"{end}0"]),
        *products,
        helper.make_node("ReduceMax", [f"{end}{count}"], [end], axes=[1, 2], keepdims=0),
    ]

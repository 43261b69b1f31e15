"""Tiny ONNX models, each made for what one test looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from scheduler.core.signature import STRING

Dim = int | str | None


def tensor(name: str, dtype: str, shape: Sequence[Dim]) -> ValueInfoProto:
    is_text = dtype == STRING
    element = TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)


def constant(name: str, values: NDArray[Any]) -> TensorProto:
    return onnx.numpy_helper.from_array(values, name)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(made)
    return made


def save(made: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path


def relu(batch: Dim = "N", width: Dim = 3) -> onnx.ModelProto:
    shape = [batch, width]
    node = helper.make_node("Relu", ["x"], ["y"])
    return model([node], [tensor("x", "float32", shape)], [tensor("y", "float32", shape)])


def times(factor: float, width: Dim = 3) -> onnx.ModelProto:
    """`y = factor * x`, with the inputs and outputs of `relu`."""
    shape: list[Dim] = ["N", width]
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    ends = [tensor("x", "float32", shape)], [tensor("y", "float32", shape)]
    return model([node], *ends, [constant("factor", np.array(factor, np.float32))])


def slow(width: int = 512, layers: int = 16, keepdims: bool = False) -> onnx.ModelProto:
    """Tens of milliseconds of matrix products on one core; `y` is `x` [N, 1, 1], or that as [N].

    Args:
        width: Of the matrices.
        layers: How many products.
        keepdims: Whether `y` has the shape of `x`.
    """
    weights = constant("w", np.eye(width, dtype=np.float32))
    nodes, last = [helper.make_node("Expand", ["x", "shape"], ["h0"])], "h0"
    for layer in range(1, layers + 1):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"h{layer}"]))
        last = f"h{layer}"
    nodes.append(helper.make_node("ReduceMax", [last], ["y"], axes=[1, 2], keepdims=int(keepdims)))
    x_shape: list[Dim] = ["N", 1, 1]
    y_shape = x_shape if keepdims else x_shape[:1]
    ends = [tensor("x", "float32", x_shape)], [tensor("y", "float32", y_shape)]
    shape = constant("shape", np.array([1, width, width]))
    return model(nodes, *ends, [weights, shape])


def counts() -> onnx.ModelProto:
    """`y` is how often `rounds` [1] says that 1 is to be added to 0, one after the other."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["so_far", "one"], ["next"]),
        ],
        "body",
        [tensor("round", "int64", []), tensor("go_on", "bool", []), tensor("so_far", "int64", [1])],
        [tensor("goes_on", "bool", []), tensor("next", "int64", [1])],
    )
    loop = helper.make_node("Loop", ["rounds", "", "zero"], ["y"], body=body)
    ends = [tensor("rounds", "int64", [1])], [tensor("y", "int64", [1])]
    constants = [constant(name, np.array([n])) for name, n in (("zero", 0), ("one", 1))]
    return model([loop], *ends, constants)


def passes_on(dtype: str) -> onnx.ModelProto:
    """`y` holds the values of `x` [N, 4] as [N, 2, 2]; of booleans, their negation."""
    ends = [tensor("x", dtype, ["N", 4])], [tensor("y", dtype, ["N", 2, 2])]
    shape = constant("shape", np.array([0, 2, 2]))
    if dtype == "bool":
        nodes = [
            helper.make_node("Not", ["x"], ["n"]),
            helper.make_node("Reshape", ["n", "shape"], ["y"]),
        ]
    else:
        nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    return model(nodes, *ends, [shape])


def words() -> onnx.ModelProto:
    """Of `text` [N, length]: `same`, and `code`, 1 where it is "eins", 2 where "zwei", else 0."""
    nodes = [
        helper.make_node("Identity", ["text"], ["same"]),
        helper.make_node(
            "LabelEncoder",
            ["text"],
            ["code"],
            domain="ai.onnx.ml",
            keys_strings=["eins", "zwei"],
            values_int64s=[1, 2],
            default_int64=0,
        ),
    ]
    shape: list[Dim] = ["N", "length"]
    outputs = [tensor("same", STRING, shape), tensor("code", "int64", shape)]
    return model(nodes, [tensor("text", STRING, shape)], outputs)


def two_by_two() -> onnx.ModelProto:
    """Two inputs of different dtypes, two outputs: `sum = a + b`, `total[i] = sum(a[i])`."""
    axes = constant("axes", np.array([1]))
    nodes = [
        helper.make_node("Cast", ["b"], ["b32"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "b32"], ["sum"]),
        helper.make_node("ReduceSum", ["a", "axes"], ["total"], keepdims=0),
    ]
    inputs = [tensor("a", "float32", ["N", 3]), tensor("b", "int32", ["N", 3])]
    outputs = [tensor("sum", "float32", ["N", 3]), tensor("total", "float32", ["N"])]
    return model(nodes, inputs, outputs, [axes])


def gather(rows: int = 4) -> onnx.ModelProto:
    """Looks an index up in a table; ONNX Runtime fails on an index beyond it."""
    table = constant("table", np.arange(2 * rows, dtype=np.float32).reshape(rows, 2))
    node = helper.make_node("Gather", ["table", "index"], ["row"])
    ends = [tensor("index", "int64", ["N"])], [tensor("row", "float32", ["N", 2])]
    return model([node], *ends, [table])


def scalar() -> onnx.ModelProto:
    """No batch dimension: `y = x + x` of a zero-dimensional `x`."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return model([node], [tensor("x", "float32", [])], [tensor("y", "float32", [])])


def found_objects() -> onnx.ModelProto:
    """The first dimension of the output is how many values are not zero."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["y"], perm=[1, 0]),
    ]
    return model(nodes, [tensor("x", "float32", ["N", 3])], [tensor("y", "int64", ["K", 2])])


def mixes_items(batch: Dim) -> onnx.ModelProto:
    """Subtracts the batch's mean, so that an item's answer depends on its neighbours."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    shape = [batch, 3]
    return model(nodes, [tensor("x", "float32", shape)], [tensor("y", "float32", shape)])


def resists_reshaping() -> onnx.ModelProto:
    """A batch of 1, with that size also in a constant in the middle of the graph."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    shape = constant("shape", np.array([1, 6]))
    ends = [tensor("x", "float32", [1, 2, 3])], [tensor("y", "float32", [1, 6])]
    return model(nodes, *ends, [shape])


def dense(width: int = 128, seed: int = 0) -> onnx.ModelProto:
    """A matrix product and a tanh, which no two libraries round alike."""
    weights = np.random.default_rng(seed).normal(size=(width, width)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    shape: list[Dim] = ["N", width]
    ends = [tensor("x", "float32", shape)], [tensor("y", "float32", shape)]
    return model(nodes, *ends, [constant("w", weights)])


def sequence() -> onnx.ModelProto:
    """Token ids of any length to their sum."""
    axes = constant("axes", np.array([1]))
    node = helper.make_node("ReduceSum", ["ids", "axes"], ["sum"], keepdims=0)
    ends = [tensor("ids", "int64", ["N", "length"])], [tensor("sum", "int64", ["N"])]
    return model([node], *ends, [axes])


def flattened() -> onnx.ModelProto:
    """All but the first dimension made one, by arithmetic on the input's shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["y"]),
    ]
    ends = [tensor("x", "float32", ["N", 2, 3])], [tensor("y", "float32", ["N", 6])]
    return model(nodes, *ends, [constant("first", np.array([0])), constant("rest", np.array([-1]))])


def turned() -> onnx.ModelProto:
    """The input, given its own shape again after that was turned about, as pads of PyTorch are."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["shape", "column"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["columns"]),
        helper.make_node("Neg", ["columns"], ["less"]),
        helper.make_node("Abs", ["less"], ["more"]),
        helper.make_node("Reshape", ["more", "flat"], ["same"]),
        helper.make_node("Reshape", ["x", "same"], ["y"]),
    ]
    ends = [tensor("x", "float32", ["N", 6])], [tensor("y", "float32", ["N", 6])]
    shapes = constant("column", np.array([-1, 1])), constant("flat", np.array([-1]))
    return model(nodes, *ends, shapes)


def small_network(dtype: str) -> onnx.ModelProto:
    """Convolution, bias, relu, pooling, a matrix product and a softmax."""
    rng = np.random.default_rng(1)
    constants = [
        constant("k", rng.normal(0, 0.3, (4, 3, 3, 3)).astype(dtype)),
        constant("bias", rng.normal(0, 0.3, 4).astype(dtype)),
        constant("w", rng.normal(0, 0.3, (4, 5)).astype(dtype)),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "k", "bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["scores"], axis=1),
    ]
    ends = [tensor("image", dtype, ["N", 3, 8, 8])], [tensor("scores", dtype, ["N", 5])]
    return model(nodes, *ends, constants)


def integer_arithmetic() -> onnx.ModelProto:
    """`y = a * 3 + b` in int32 and int64, and a uint8 cast."""
    nodes = [
        helper.make_node("Mul", ["a", "three"], ["t"]),
        helper.make_node("Add", ["t", "b"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.INT64),
        helper.make_node("Cast", ["a"], ["u"], to=TensorProto.UINT8),
    ]
    inputs = [tensor("a", "int32", ["N", 4]), tensor("b", "int32", ["N", 4])]
    outputs = [
        tensor("y", "int32", ["N", 4]),
        tensor("z", "int64", ["N", 4]),
        tensor("u", "uint8", ["N", 4]),
    ]
    return model(nodes, inputs, outputs, [constant("three", np.array(3, np.int32))])


def logic() -> onnx.ModelProto:
    """Booleans in and out: `both = p and q`, and where `p`, the number, else 0."""
    nodes = [
        helper.make_node("And", ["p", "q"], ["both"]),
        helper.make_node("Where", ["p", "x", "zero"], ["y"]),
    ]
    inputs = [
        tensor("p", "bool", ["N", 4]),
        tensor("q", "bool", ["N", 4]),
        tensor("x", "float32", ["N", 4]),
    ]
    outputs = [tensor("both", "bool", ["N", 4]), tensor("y", "float32", ["N", 4])]
    return model(nodes, inputs, outputs, [constant("zero", np.array(0, np.float32))])


def softmax(masked: bool = True, twice: bool = False) -> onnx.ModelProto:
    """The softmax of `x` [N, L] where `mask` is 1, or of all of it; maybe also `x` twice as `z`."""
    length: list[Dim] = ["N", "L"]
    nodes = [
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Mul", ["e", "m" if masked else "one"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=1),
        helper.make_node("Div", ["kept", "total"], ["y"]),
    ]
    ends = (
        [tensor("x", "float32", length), tensor("mask", "int64", length)],
        [tensor("y", "float32", length)],
    )
    if twice:
        nodes.append(helper.make_node("Concat", ["x", "x"], ["z"], axis=1))
        ends[1].append(tensor("z", "float32", ["N", "K"]))
    constants = [constant("axis", np.array([1])), constant("one", np.array(1, np.float32))]
    return model(nodes, *ends, constants)

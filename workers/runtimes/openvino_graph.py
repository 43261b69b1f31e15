"""OpenVINO's graphs: read a file's inputs and outputs, and set its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scheduler.core.signature import TensorSpec
from workers.model import Model
from workers.runtimes.base import ModelLoadError, one_line
from workers.signatures import FileTensors

_DTYPES = {
    "boolean": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}


def read_tensors(path: Path) -> FileTensors:
    """Read the input and output tensors of an `.onnx` or `.xml` file, without compiling it.

    Raises:
        ModelLoadError: The file is no valid model, or has a tensor that cannot be served.
    """
    graph = read_graph(path)
    inputs = tuple(map(_spec, graph.inputs))
    outputs = tuple(map(_spec, graph.outputs))
    stateful = bool(graph.get_variables())
    return FileTensors(inputs, outputs, _outputs_follow_batch(graph), stateful)


def read_graph(path: Path) -> Any:
    """The `openvino.Model` of a file.

    Raises:
        ModelLoadError: The file is no valid model.
    """
    try:
        return core().read_model(path)
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {reason(error)}") from error


def core() -> Any:
    """The library's entry point."""
    import openvino

    return openvino.Core()


def fix_shapes(graph: Any, model: Model) -> None:
    """Fix every free dimension, the batch at 1.

    Raises:
        ModelLoadError: The model gives no size for a free dimension.
    """
    import openvino

    shapes = {}
    for index, port in enumerate(graph.inputs):
        spec = next(spec for spec in model.signature.inputs if spec.name in port.names)
        shape = model.profile_shapes.get(spec.name) or spec.shape
        if None in shape:
            raise ModelLoadError(
                f"an NPU needs fixed shapes, and '{spec.name}' has free dimensions; name sizes "
                "under `profile_shapes` in model.yaml"
            )
        leading = (1,) if model.signature.batched else ()
        shapes[index] = openvino.PartialShape([*leading, *shape])
    try:
        graph.reshape(shapes)
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {reason(error)}") from error


def set_batch(graph: Any, size: int) -> None:
    """Set the leading dimension of every input; -1 leaves it free.

    Raises:
        RuntimeError: The graph cannot be reshaped so.
    """
    import openvino

    graph.reshape(
        {
            index: openvino.PartialShape([size, *list(port.partial_shape)[1:]])
            for index, port in enumerate(graph.inputs)
        }
    )


def _outputs_follow_batch(graph: Any) -> bool:
    """Whether a batch of two at every input gives two rows in every output.

    This distinguishes a batch dimension from one that depends on the data, such as the number of
    objects found; both are dynamic in the file.
    """
    shapes = [port.partial_shape for port in graph.inputs]
    if any(shape.rank.is_dynamic or len(shape) == 0 for shape in shapes):
        return False
    probe = graph.clone()
    try:
        set_batch(probe, 2)
    except Exception:  # a graph that cannot take a batch of two has no batch dimension
        return False
    return all(_leads_with_two(port.partial_shape) for port in probe.outputs)


def _leads_with_two(shape: Any) -> bool:
    if shape.rank.is_dynamic or len(shape) == 0 or shape[0].is_dynamic:
        return False
    return bool(shape[0].get_length() == 2)


def _name(port: Any) -> str:
    names = port.names
    return str(port.any_name if names else port.node.friendly_name)


def _spec(port: Any) -> TensorSpec:
    name, dtype = _name(port), port.element_type.get_type_name()
    if dtype not in _DTYPES:
        raise ModelLoadError(
            f"tensor '{name}' is {dtype}; accepted are {', '.join(_DTYPES.values())}"
        )
    if port.partial_shape.rank.is_dynamic:
        raise ModelLoadError(
            f"tensor '{name}' has no known number of dimensions; export it with a shape"
        )
    shape = tuple(None if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
    return TensorSpec(name, _DTYPES[dtype], shape)


def positions(ports: list[Any], specs: tuple[TensorSpec, ...]) -> dict[str, int]:
    """The port index of each tensor of a signature in a compiled model.

    Raises:
        ModelLoadError: A tensor is absent.
    """
    found = {
        name: index for index, port in enumerate(ports) for name in port.names or {_name(port)}
    }
    absent = [spec.name for spec in specs if spec.name not in found]
    if absent:
        raise ModelLoadError(f"openvino finds no tensor {', '.join(absent)}")
    return {spec.name: found[spec.name] for spec in specs}


def reason(error: Exception) -> str:
    """The library's error without the lines that name its source files."""
    lines = [line for line in str(error).splitlines() if not line.startswith("Exception from ")]
    return one_line("\n".join(lines) or error)

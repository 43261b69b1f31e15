"""Which files a model has: those that an ONNX graph names, wherever in it a tensor may be."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.workers import onnx_models
from tests.workers.onnx_models import tensor
from workers.model_files import ModelFileFault, check_model_files, weight_bytes, weight_files
from workers.repository import load_repository

WEIGHTS = np.arange(1_000, dtype=np.float32)


def initialized() -> onnx.ModelProto:
    return onnx_models.dense()


def in_an_attribute() -> onnx.ModelProto:
    held = onnx_models.constant("w", WEIGHTS)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=held),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    ends = [tensor("x", "float32", [1_000])], [tensor("y", "float32", [1_000])]
    return onnx_models.model(nodes, *ends)


def in_a_branch() -> onnx.ModelProto:
    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("Identity", [f"w_{name}"], [f"y_{name}"])
        ends = [tensor(f"y_{name}", "float32", [1_000])]
        return helper.make_graph(
            [node], name, [], ends, [onnx_models.constant(f"w_{name}", WEIGHTS)]
        )

    node = helper.make_node("If", ["x"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    ends = [tensor("x", "bool", [])], [tensor("y", "float32", [1_000])]
    return onnx_models.model([node], *ends)


def save_apart(made: onnx.ModelProto, path: Path) -> Path:
    """Saves a model with its weights in another file."""
    path.parent.mkdir(parents=True)
    onnx.save(
        made,
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


MODELS = pytest.mark.parametrize("made", [initialized, in_an_attribute, in_a_branch])


@MODELS
def test_weights_in_a_file_of_another_name_are_the_models(made, tmp_path: Path):
    path = save_apart(made(), tmp_path / "m/model.onnx")
    apart = path.with_name("weights.bin")
    assert weight_files(path) == [path, apart]
    assert weight_bytes(path) == path.stat().st_size + apart.stat().st_size


def test_a_digest_follows_weights_in_a_file_of_another_name(tmp_path: Path):
    path = save_apart(initialized(), tmp_path / "m/1/model.onnx")
    (first,) = load_repository(tmp_path).models.values()
    apart = path.with_name("weights.bin")
    weights = bytearray(apart.read_bytes())
    weights[0] ^= 1
    apart.write_bytes(weights)
    (second,) = load_repository(tmp_path).models.values()
    assert first.digest != second.digest
    assert first.variants[0].digest != second.variants[0].digest


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "a/../../weights.bin"])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, location: str):
    made = initialized()
    (held,) = made.graph.initializer
    held.ClearField("raw_data")
    held.data_location = onnx.TensorProto.EXTERNAL
    held.external_data.add(key="location", value=location)
    path = onnx_models.save(made, tmp_path / "m/1/model.onnx")
    with pytest.raises(ModelFileFault, match="outside of its folder"):
        check_model_files(path)
    (problem,) = load_repository(tmp_path).problems
    assert "outside of its folder" in problem.reason


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([initialized, in_an_attribute, in_a_branch]), st.data())
def test_a_damaged_file_is_refused_or_read_and_never_more(tmp_path_factory, made, data):
    whole = made().SerializeToString()
    damaged = bytearray(whole[: data.draw(st.integers(1, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, min(400, len(damaged)) - 1))] = data.draw(
            st.integers(0, 255)
        )
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelFileFault):
        check_model_files(path)


def test_messages_that_are_nested_deeper_than_any_library_reads_are_refused(tmp_path: Path):
    inner = b""
    for _ in range(100):  # a graph in an attribute of a node of a graph
        for key in (6, 5, 1):
            inner = field(key, inner)
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, inner))
    with pytest.raises(ModelFileFault, match="no ONNX model"):
        check_model_files(path)


def field(number: int, content: bytes) -> bytes:
    """A field of a message, in the encoding of Protocol Buffers."""
    length, rest = b"", len(content)
    while rest >= 128:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | 2]) + length + bytes([rest]) + content


def test_files_that_are_gone_weigh_nothing(tmp_path: Path) -> None:
    assert weight_bytes(tmp_path / "gone.onnx") == 0

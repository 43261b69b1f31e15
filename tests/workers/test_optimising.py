"""Variants are made, measured, and added only where they lose little."""

from __future__ import annotations

import errno
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from workers.model_yaml import ModelFileError, parse_model_file
from workers.optimising import comparison
from workers.optimising.comparison import Losses, Samples, losses, speeds
from workers.optimising.conversion import ConversionError, convert
from workers.optimising.model_yaml_edit import model_file_text, with_variant
from workers.optimising.optimise import Wish, optimise
from workers.repository import load_repository
from workers.runtimes.base import ModelLoadError
from workers.runtimes.onnxruntime import OnnxRuntime
from workers.runtimes.openvino import OpenVino
from workers.tensors import Item

CONFIGS = Path(__file__).parents[2] / "configs"
DIGITS = CONFIGS / "models" / "digits"
ENTRY = {"file": "b.onnx", "precision": "int8"}


@pytest.fixture(scope="module")
def heldout():
    with np.load(CONFIGS / "digits_heldout.npz") as file:
        images, labels = file["images"][:160, None].astype(np.float32), file["labels"][:160]
    items = [{"image": image} for image in images]
    return items[:60], Samples(items[60:], labels[60:].astype(np.int64))


@pytest.fixture
def small(tmp_path):
    """A model with the quick one of the digits variants."""
    folder = tmp_path / "models" / "digits"
    folder.mkdir(parents=True)
    shutil.copy(DIGITS / "small.onnx", folder)
    entry = "{file: small.onnx, accuracy: 0.9}  # of another set"
    (folder / "model.yaml").write_text(f"variants:\n  small: {entry}\nmax_batch: 4\n")
    return folder


def loaded(folder):
    return load_repository(folder.parent).models[folder.name]


def make(folder, to, data, **changes):
    model = loaded(folder)
    wish = replace(Wish(model.variants[0], to, f"made-{to}", 0.02), **changes)
    calibration, samples = data
    return optimise(folder, model, wish, calibration, samples, lambda text: None)


@pytest.mark.parametrize("to", ["int8", "fp16"])
def test_a_variant_is_made_measured_and_added_behind_its_source(small, heldout, to):
    made = make(small, to, heldout)
    assert made.refused is None
    assert made.size_bytes < made.source_bytes
    assert made.losses.agreement > 0.97
    assert 0 < made.losses.deviation < 0.05
    assert {speed.runtime for speed in made.speeds} == {"onnxruntime", "openvino"}
    assert all(speed.fault is None and speed.p50_ms for speed in made.source_speeds)
    model = loaded(small)
    assert [v.name for v in model.variants] == ["small", f"made-{to}"]
    assert model.variants[1].precision == to
    # On the scale of the owner's figure for the source.
    assert model.variants[1].accuracy == pytest.approx(0.9 - made.losses.drop, abs=1e-4)
    assert "# of another set" in (small / "model.yaml").read_text()
    assert not list(small.glob(".*"))


def test_one_that_loses_too_much_leaves_no_trace(small, heldout):
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    calibration, samples = heldout
    wrong = Samples(samples.items, (samples.labels + 1) % 10)
    ruined = [{"image": item["image"] * 1e-3} for item in calibration]
    made = make(small, "int8", (ruined, samples))
    assert "of accuracy, where 2.0% is allowed" in str(made.refused)
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before
    # Without labels it is agreement that counts; with wrong ones nothing is lost.
    assert "of agreement" in make(small, "int8", (ruined, Samples(samples.items))).refused
    assert make(small, "fp16", (calibration, wrong)).refused is None


def test_a_model_without_a_model_yaml_gets_one(small, heldout):
    (small / "1").mkdir()
    (small / "small.onnx").rename(small / "1" / "model.onnx")
    (small / "model.yaml").unlink()
    assert make(small, "fp16", heldout).accuracy == pytest.approx(0.99, abs=0.02)
    assert [v.name for v in loaded(small).variants] == ["1", "made-fp16"]


def test_a_model_yaml_that_cannot_be_written_leaves_no_file(small, heldout, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(small.rglob("*"))
    monkeypatch.setattr("workers.optimising.optimise.replace_file", full)
    with pytest.raises(OSError, match="No space left"):
        make(small, "fp16", heldout)
    assert sorted(small.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "int8"}, "'small' is int8; start from an fp32 one"),
        ({"path": Path("small.xml")}, "is not an .onnx file"),
        ({"stateful": True}, "keeps values between runs"),
    ],
)
def test_what_cannot_be_converted_is_refused(small, heldout, changes, said):
    source = replace(loaded(small).variants[0], **changes)
    with pytest.raises(ConversionError, match=said):
        make(small, "int8", heldout, source=source)


def test_a_name_that_is_taken_is_refused(small, heldout):
    with pytest.raises(ModelFileError, match="a variant 'small' already"):
        make(small, "fp16", heldout, name="small")


def test_a_file_that_is_there_is_not_overwritten(small, heldout):
    (small / "mine.onnx").write_bytes(b"precious")
    with pytest.raises(ConversionError, match=r"a file mine\.onnx already"):
        make(small, "fp16", heldout, name="mine")
    assert (small / "mine.onnx").read_bytes() == b"precious"


@pytest.mark.parametrize("described", [True, False])
def test_what_the_repository_cannot_read_is_taken_back(small, heldout, monkeypatch, described):
    if not described:
        (small / "1").mkdir()
        (small / "small.onnx").rename(small / "1" / "model.onnx")
        (small / "model.yaml").unlink()
    before = {path.name for path in small.iterdir()}
    # Stands for what nobody thought of: the new file is no model when it is read again.
    monkeypatch.setattr("workers.optimising.optimise.replace_file", ruin(small))
    made = make(small, "fp16", heldout)
    assert "variant 'made-fp16': " in str(made.refused)
    assert {path.name for path in small.iterdir()} == before
    assert len(loaded(small).variants) == 1


def ruin(folder):
    def write(path, text):
        for made in folder.glob("made-*.onnx"):
            made.write_bytes(b"")
        path.write_text(text)

    return write


@pytest.mark.parametrize("to", ["int8", "fp16"])
def test_a_file_of_an_old_exporter_is_brought_up_to_date(tmp_path, to):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(4, 1, 3, 3)).astype(np.float32)
    weights = [
        numpy_helper.from_array(kernel, "w"),
        numpy_helper.from_array(np.array(7, np.int64), "num_batches_tracked"),
    ]
    # Opset 9 and format 3: weights are inputs as well, and one is used by nobody.
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 8, 8]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 1, 3, 3]),
        helper.make_tensor_value_info("num_batches_tracked", TensorProto.INT64, []),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 6, 6])
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "old", ends, [y])
    graph.initializer.extend(weights)
    opsets = [helper.make_opsetid("", 9)]
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    onnx.save(helper.make_model(graph, ir_version=3, opset_imports=opsets), old)
    items = [{"x": rng.normal(size=(1, 8, 8)).astype(np.float32)} for _ in range(8)]

    convert(old, new, to, items, True)

    kept = [weight for weight in onnx.load(new).graph.initializer if len(weight.dims) == 4]
    coarse = {"int8": TensorProto.INT8, "fp16": TensorProto.FLOAT16}[to]
    assert [weight.data_type for weight in kept] == [coarse]
    session = onnxruntime.InferenceSession(new, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["x"]
    before = onnxruntime.InferenceSession(old, providers=["CPUExecutionProvider"])
    asked = {"x": items[0]["x"][None]}
    (found,), (expected,) = session.run(None, asked), before.run(None, asked)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_a_file_that_resists_is_named(tmp_path):
    (tmp_path / "odd.onnx").write_bytes(b"no model")
    with pytest.raises(ConversionError, match=r"odd\.onnx cannot be made fp16: "):
        convert(tmp_path / "odd.onnx", tmp_path / "new.onnx", "fp16", [], True)


def test_an_absent_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConversionError, match=r"pip install 'laxity\[optimize\]'"):
        convert(DIGITS / "small.onnx", tmp_path / "new.onnx", "fp16", [], True)


class TestLosses:
    def test_they_are_counted_item_by_item(self):
        before: list[Item] = [{"y": np.array([0.0, 1.0])}, {"y": np.array([4.0, 0.0])}]
        after: list[Item] = [{"y": np.array([0.0, 1.0])}, {"y": np.array([1.0, 4.0])}]
        found = losses(before, after, Samples([{}, {}], np.array([1, 0])))
        assert found == Losses(0.5, (0 + 3.5 / 4) / 2, 0.5, 1.0)
        assert found.drop == 0.5
        assert losses(before, before, Samples([{}, {}])).drop == 0

    def test_another_shape_is_another_answer(self):
        before: list[Item] = [{"y": np.zeros((2, 4))}]
        after: list[Item] = [{"y": np.zeros((3, 4))}]
        assert losses(before, after, Samples([{}])) == Losses(0.0, 1.0, None, None)
        nothing: list[Item] = [{"y": np.zeros((0, 4))}]
        assert losses(nothing, nothing, Samples([{}])) == Losses(1.0, 0.0, None, None)


def test_a_runtime_that_answers_wrongly_or_not_at_all_is_told(small, heldout, monkeypatch):
    class Off:
        def __init__(self, session):
            self._session = session
            self.max_batch, self.close = session.max_batch, session.close

        def run(self, inputs):
            return {name: array + 1 for name, array in self._session.run(inputs).items()}

    class Wrong(OnnxRuntime):
        def load(self, *args) -> Any:
            return Off(super().load(*args))

    class Unable(OpenVino):
        def load(self, *args):
            raise ModelLoadError("not today")

    monkeypatch.setattr(comparison, "RUNTIMES", {"wrong": Wrong, "unable": Unable})
    model, samples = loaded(small), heldout[1]
    expected: list[Item] = [{"scores": np.full(10, 0.1, np.float32)}]
    wrong, unable = speeds(model, model.variants[0], samples, expected, lambda text: None)
    assert wrong.p50_ms is not None
    assert "is off by" in str(wrong.fault)
    assert unable == comparison.Speed("unable", None, "not today")


class TestModelYaml:
    @pytest.mark.parametrize(
        ("text", "new"),
        [
            (
                "variants:\n  a: {file: a.onnx}  # best\n\n# limits\nmax_batch: 4\n",
                "variants:\n  a: {file: a.onnx}  # best\n  b: {file: b.onnx, precision: int8}\n"
                "\n# limits\nmax_batch: 4\n",
            ),
            (
                "variants:\n    a:\n        file: a.onnx\n    c:\n        file: c.onnx",
                "variants:\n    a:\n        file: a.onnx\n    b: {file: b.onnx, precision: int8}\n"
                "    c:\n        file: c.onnx",
            ),
            (
                "variants: {a: {file: a.onnx}, c: {file: c.onnx}}\n",
                "variants: {a: {file: a.onnx}, b: {file: b.onnx, precision: int8}, "
                "c: {file: c.onnx}}\n",
            ),
            (
                "variants:\n  a: {file: a.onnx}",
                "variants:\n  a: {file: a.onnx}\n  b: {file: b.onnx, precision: int8}",
            ),
        ],
    )
    def test_a_variant_is_added_and_all_else_stays(self, text, new):
        assert with_variant(text, "a", "b", ENTRY) == new
        assert list(parse_model_file(new).variants)[:2] == ["a", "b"]

    def test_what_cannot_be_added_to_is_said(self):
        text = "variants:\n  a: &x {file: a.onnx}\n  c: *x\n"
        with pytest.raises(ModelFileError, match=r"by hand: b: \{file: b.onnx"):
            with_variant(text, "c", "b", ENTRY)
        with pytest.raises(ModelFileError, match="no variant 'd'"):
            with_variant(text, "d", "b", ENTRY)

    def test_what_names_no_variants_gets_them_at_its_end(self):
        text = "max_batch: 4  # enough\n\n"
        new = model_file_text({"1": {"file": "1/model.onnx"}}, text)
        assert new == "max_batch: 4  # enough\nvariants:\n  '1': {file: 1/model.onnx}\n"
        with pytest.raises(ModelFileError, match=r"by hand: variants:\n  '1'"):
            model_file_text({"1": {"file": "1/model.onnx"}}, "{max_batch: 4}\n")

    def test_names_that_look_like_numbers_stay_names(self):
        text = model_file_text({"1": {"file": "1/model.onnx"}})
        assert yaml.safe_load(with_variant(text, "1", "2", ENTRY))["variants"].keys() == (
            {"1", "2"}
        )

"""What a `model.yaml` may say of items of different lengths, and whether it is true."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from scheduler.core.signature import STRING, Signature, TensorSpec
from tests.workers import onnx_models
from workers.link import card_from
from workers.model import Padding, ShapeRange
from workers.model_yaml import ModelFileError, parse_model_file
from workers.padding import padded_length, padding_of
from workers.runtimes.base import DeviceSpec
from workers.runtimes.onnxruntime import OnnxRuntime, OnnxRuntimeSession
from workers.runtimes.openvino import OpenVinoSession

SIGNATURE = Signature(
    (
        TensorSpec("ids", "int32", (None,)),
        TensorSpec("sound", "float16", (None, 80)),
        TensorSpec("image", "uint8", (None, None, 3)),
        TensorSpec("text", STRING, (None,)),
        TensorSpec("flags", "bool", (None,)),
    ),
    (TensorSpec("hidden", "float32", (None, 64)), TensorSpec("label", "int64", (1,))),
    True,
)

CPU = DeviceSpec("cpu:0", "cpu", runtimes=("onnxruntime",))


def padding(text: str) -> tuple[Padding, ...]:
    return padding_of(parse_model_file(f"variants: {{v: {{file: a.onnx}}}}\n{text}"), SIGNATURE)


def test_nothing_is_padded_unless_the_owner_says_so():
    assert padding("") == padding("inputs: {ids: {}}") == ()


def test_each_input_has_lengths_and_a_value_and_the_outputs_that_are_as_long():
    text = (
        "inputs:\n  ids: {pad: {to: [16, 64]}}\n  sound: {pad: {to: [100], value: -0.5}}\n"
        "  flags: {pad: {to: [16], value: true}}\noutputs: {hidden: {as_long_as: ids}}"
    )
    assert padding(text) == (
        Padding("ids", (16, 64), 0, ("hidden",)),
        Padding("sound", (100,), -0.5),
        Padding("flags", (16,), True),
    )


@pytest.mark.parametrize(
    ("length", "becomes"), [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, 9), (100, 100)]
)
def test_an_item_is_padded_to_the_next_length(length, becomes):
    assert padded_length(Padding("x", (4, 8)), length) == becomes


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("inputs: {ids: {pad: {too: [4]}}}", r"'inputs.ids.pad.too' \(did you mean 'to'\?\)"),
        ("inputs: {ids: {pad: {to: []}}}", "inputs.ids.pad.to"),
        ("inputs: {ids: {pad: {to: [0]}}}", "inputs.ids.pad.to.0"),
        ("inputs: {ids: {pad: {to: [8, 4]}}}", r"pad to \[8, 4\]: needs .* ascending order"),
        ("inputs: {ids: {pad: {to: [4, 4]}}}", r"pad to \[4, 4\]"),
        ("inputs: {ids: {pad: {to: [4], value: 0.5}}}", "pad.value: 0.5 is no int32"),
        ("inputs: {ids: {pad: {to: [4], value: 2147483648}}}", "is no int32"),
        ("inputs: {flags: {pad: {to: [4], value: 2}}}", "is no bool"),
        ("inputs: {sound: {pad: {to: [4], value: 65520.0}}}", "is no float16"),
        ("inputs: {sound: {pad: {to: [4], value: .nan}}}", "inputs.sound.pad.value"),
        ("inputs: {image: {pad: {to: [4]}}}", r"one free dimension, this is uint8 \[\*, \*, 3\]"),
        ("inputs: {text: {pad: {to: [4]}}}", r"needs numbers .*, this is string \[\*\]"),
        ("outputs: {hiden: {as_long_as: ids}}", r"no output 'hiden' \(did you mean 'hidden'\?\)"),
        ("outputs: {hidden: {as_long_as: ids}}", "'ids' is no input with `pad`"),
        ("outputs: {hidden: {as_long: ids}}", r"'outputs.hidden.as_long' \(did you mean"),
        (
            "inputs: {ids: {pad: {to: [4]}}}\noutputs: {label: {as_long_as: ids}}",
            r"outputs.label.as_long_as: needs one free dimension, this is \[1\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(said, why):
    with pytest.raises(ModelFileError, match=why):
        padding(said)


def card(*pad):
    return {
        "name": "m",
        "description": "",
        "signature": asdict(SIGNATURE),
        "variants": ["v"],
        "max_batch": 4,
        "pad": list(pad),
    }


def test_another_box_may_tell_of_padding():
    found = card_from(card(asdict(Padding("ids", (4, 8), -1, ("hidden",)))))
    assert found.pad == (Padding("ids", (4, 8), -1, ("hidden",)),)
    old = card()
    del old["pad"]
    assert card_from(old).pad == ()


@pytest.mark.parametrize(
    "pad",
    [
        {"input": "ids", "to": []},
        {"input": "ids", "to": [4, 2]},
        {"input": "ids", "to": [-4]},
        {"input": "none", "to": [4]},
        {"input": "image", "to": [4]},
        {"input": "text", "to": [4]},
        {"input": "ids", "to": [4], "value": float("nan")},
        {"input": "ids", "to": [4], "value": float("inf")},
        {"input": "ids", "to": [4], "outputs": ["none"]},
        {"input": "ids", "to": [4], "outputs": ["label"]},
    ],
)
def test_another_box_may_not_tell_nonsense(pad):
    with pytest.raises(ValueError, match=r"pad|ascending|outputs"):
        card_from(card(pad))


# -- tried on a model


PAD = (
    "variants: {v: {file: model.onnx}}\n"
    "inputs: {x: {pad: {to: [4, 16]}}, mask: {pad: {to: [4, 16]}}}\n"
    "outputs: {y: {as_long_as: x}}\n"
)


def test_a_padded_model_is_measured_at_its_longest_and_compiled_for_all_lengths(add, load):
    add("m", onnx_models.softmax(), PAD)
    model = load("m")
    assert model.profile_shapes == {"x": (16,), "mask": (16,)}
    assert model.shape_ranges == dict.fromkeys(("x", "mask"), ShapeRange((4,), (16,)))

    add("n", onnx_models.softmax(), PAD + "profile_shapes: {x: [4], mask: [4]}\n")
    assert load("n").profile_shapes == {"x": (4,), "mask": (4,)}


def test_a_model_whose_answers_stay_the_same_is_served(add, start_on):
    add("m", onnx_models.softmax(), PAD)
    host = start_on(CPU)

    assert [offer.item_shapes for offer in host.prepare()] == [((16,), (16,))]
    assert host.problems == []


@pytest.mark.parametrize(
    ("made", "text", "why"),
    [
        (
            onnx_models.softmax(masked=False),
            PAD,
            r"padding changes its answers: '.' is off by .* `value`",
        ),
        (
            onnx_models.softmax(),
            PAD.replace("x: {pad: {to: [4, 16]}}", "x: {pad: {to: [4, 16], value: 1000}}"),
            "padding changes its answers: '.' has infinities",
        ),
        (
            onnx_models.softmax(twice=True),
            PAD.replace("{y: {as_long_as: x}}", "{y: {as_long_as: x}, z: {as_long_as: x}}"),
            "'z' is 32 long where 'x' is 16 long; take it out of `outputs`",
        ),
        (
            onnx_models.softmax(),
            PAD.replace("outputs: {y: {as_long_as: x}}\n", ""),
            r"padding changes its answers: 'y' is \[16\] instead of \[12\]; .* say `outputs: {y: ",
        ),
    ],
    ids=["no mask", "value", "not as long", "not cut"],
)
def test_a_model_whose_answers_change_is_not_served(add, start_on, made, text, why):
    add("m", made, text)
    host = start_on(CPU)

    assert list(host.prepare()) == []
    [problem] = host.problems
    assert re.match(f"rejected: {why}", problem.reason)


def test_each_length_has_run_once_before_requests_do(add, start_on, monkeypatch):
    lengths = []
    run = OnnxRuntimeSession.run

    def noted(self, inputs):
        lengths.append(inputs["x"].shape[1])
        return run(self, inputs)

    monkeypatch.setattr(OnnxRuntimeSession, "run", noted)
    add("m", onnx_models.softmax(), PAD)
    list(start_on(CPU).prepare())
    assert {4, 16} <= set(lengths)

    lengths.clear()
    list(start_on(CPU).prepare())  # as measured before
    assert {4, 16} <= set(lengths)


def test_a_runtime_that_takes_the_padded_lengths_alone_is_compared_with_the_cpu(
    add, start_on, monkeypatch
):
    pytest.importorskip("openvino")
    run = OpenVinoSession.run

    def compiled(self, inputs):
        assert inputs["x"].shape[1] in (4, 16)
        return run(self, inputs)

    monkeypatch.setattr(OpenVinoSession, "run", compiled)
    add("m", onnx_models.softmax(), PAD)
    add("n", onnx_models.softmax(masked=False), PAD)
    device = DeviceSpec("cpu:0", "cpu", runtimes=("openvino",))
    assert list(start_on(device).prepare()) == []

    monkeypatch.setattr("workers.trials.reference_runtimes", lambda _: (OnnxRuntime(),))
    monkeypatch.setattr("workers.reference.reference_runtimes", lambda _: (OnnxRuntime(),))
    host = start_on(device)
    assert [offer.model for offer in host.prepare()] == ["m"]
    [problem] = [each for each in host.problems if each.model == "n"]
    assert problem.reason.startswith("rejected: padding changes its answers: 'y' is off by")

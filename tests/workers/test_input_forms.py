"""What a `model.yaml` may say of how inputs travel over a slow link."""

from __future__ import annotations

import math
from dataclasses import asdict

import msgpack
import pytest

from scheduler.core.signature import Signature, TensorSpec
from tests.workers import onnx_models
from workers.input_forms import forms_of
from workers.link import card_from
from workers.model import Encoding, InputForms
from workers.model_yaml import ModelFileError, parse_model_file
from workers.repository import load_repository

SIGNATURE = Signature(
    (
        TensorSpec("image", "float32", (3, 224, 224)),
        TensorSpec("pixels", "uint8", (None, None, 3)),
        TensorSpec("ids", "int64", (7,)),
        TensorSpec("half", "float16", (1, 8, 8)),
    ),
    (),
    True,
)


def forms(text: str) -> tuple[InputForms, ...]:
    return forms_of(parse_model_file(f"variants: {{v: {{file: a.onnx}}}}\n{text}"), SIGNATURE)


def test_nothing_is_made_smaller_unless_the_owner_says_so():
    assert forms("") == ()
    assert forms("inputs: {}") == ()
    assert forms("inputs: {image: {}}") == ()


def test_the_order_of_the_forms_is_kept():
    [found] = forms("inputs: {image: {shrink: [{jpeg: {range: [0, 1]}}, float16]}}")
    assert found.input == "image"
    jpeg, half = found.encodings
    assert jpeg == Encoding("jpeg", 90, "NCHW", (1 / 255,), (0.0,))
    assert half == Encoding("float16")


def test_mean_and_std_are_those_of_images_from_0_to_1():
    text = "{quality: 80, mean: [0.5, 0.4, 0.3], std: [0.25, 0.5, 1]}"
    [found] = forms(f"inputs: {{image: {{shrink: [jpeg: {text}]}}}}")
    [jpeg] = found.encodings
    assert jpeg.quality == 80
    for channel, (mean, std) in enumerate([(0.5, 0.25), (0.4, 0.5), (0.3, 1.0)]):
        for step in (0, 100, 255):
            value = step * jpeg.scale[channel] + jpeg.offset[channel]
            assert math.isclose(value, (step / 255 - mean) / std, abs_tol=1e-12)


def test_an_input_of_bytes_is_its_own_8_bits():
    [found] = forms("inputs: {pixels: {shrink: [{jpeg: {layout: NHWC}}]}}")
    assert found.encodings == (Encoding("jpeg", 90, "NHWC", (1.0,), (0.0,)),)
    [grey] = forms("inputs: {half: {shrink: [{jpeg: {range: [-1, 1]}}]}}")
    assert grey.encodings[0].offset == (-1.0,)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{imag: {shrink: [float16]}}", r"no input 'imag' \(did you mean 'image'\?\)"),
        ("{image: {shrnk: [float16]}}", r"'inputs.image.shrnk' \(did you mean 'shrink'\?\)"),
        ("{image: {shrink: float16}}", r"'inputs.image.shrink'"),
        ("{image: {shrink: [float8]}}", r"'inputs.image.shrink.0.float8' \(did you .*'float16'"),
        ("{image: {shrink: [float16, float16]}}", "a form appears twice"),
        (
            "{image: {shrink: [{float16: {}, jpeg: {}}]}}",
            "each entry must be either float16 or jpeg",
        ),
        ("{image: {shrink: [{}]}}", "each entry must be either float16 or jpeg"),
        ("{ids: {shrink: [float16]}}", "float16 is for float32 or float64, this is int64"),
        ("{half: {shrink: [float16]}}", "float16 is for float32 or float64, this is float16"),
        ("{ids: {shrink: [jpeg]}}", "is for uint8, float16, float32, float64, this is int64"),
        ("{image: {shrink: [jpeg]}}", r"needs range, such as \[0, 1\], or mean and std"),
        ("{image: {shrink: [jpeg: {mean: [0.5]}]}}", "needs range"),
        ("{image: {shrink: [jpeg: {range: [0, 1], mean: [0], std: [1]}]}}", "needs range"),
        ("{image: {shrink: [jpeg: {range: [1, 1]}]}}", "needs two different finite numbers"),
        ("{image: {shrink: [jpeg: {range: [0, .inf]}]}}", "needs two different finite numbers"),
        ("{image: {shrink: [jpeg: {range: [0]}]}}", "range"),
        ("{image: {shrink: [jpeg: {mean: [0, 0], std: [1, 1]}]}}", "one per channel"),
        ("{image: {shrink: [jpeg: {mean: [0, 0, 0], std: [1]}]}}", "equally many finite numbers"),
        ("{image: {shrink: [jpeg: {mean: [0], std: [0]}]}}", "std"),
        ("{image: {shrink: [jpeg: {range: [0, 1], quality: 101}]}}", "quality"),
        ("{image: {shrink: [jpeg: {range: [0, 1], layout: CHW}]}}", "layout"),
        ("{image: {shrink: [jpeg: {range: [0, 1], layot: NHWC}]}}", "did you mean 'layout'"),
        (
            "{image: {shrink: [jpeg: {range: [0, 1], layout: NHWC}]}}",
            r"of which the last is 1 or 3, not \[3, 224, 224\]",
        ),
        ("{pixels: {shrink: [jpeg]}}", r"of which the first is 1 or 3, not \[None, None, 3\]"),
        ("{pixels: {shrink: [jpeg: {layout: NHWC, range: [0, 1]}]}}", "takes neither range nor"),
    ],
)
def test_what_can_not_be_so_is_said(said: str, why: str):
    with pytest.raises(ModelFileError, match=why):
        forms(f"inputs: {said}")


def test_the_digest_is_that_of_what_answers_and_not_of_how_it_is_asked(root, add):
    text = "variants: {v: {file: model.onnx}}\n"
    add("relu", onnx_models.relu(), text)
    before = load_repository(root).models["relu"]
    add("relu", onnx_models.relu(), f"{text}inputs: {{x: {{shrink: [float16]}}}}\n")
    after = load_repository(root).models["relu"]
    assert after.shrink == (InputForms("x", (Encoding("float16"),)),)
    assert after.digest == before.digest


def test_forms_travel_with_the_card_of_a_model():
    forms = (
        InputForms("image", (Encoding("float16"), Encoding("jpeg", 90, "NCHW", (2.0,), (1.0,)))),
    )
    card = {
        "name": "m",
        "description": "",
        "variants": ["v"],
        "max_batch": 1,
        "digest": "d",
        "signature": asdict(SIGNATURE),
        "cache": None,
        "shrink": [asdict(each) for each in forms],
    }
    found = card_from(msgpack.unpackb(msgpack.packb(card)))
    assert found.shrink == forms
    assert found.approximates
    del card["shrink"]
    old = card_from(msgpack.unpackb(msgpack.packb(card)))
    assert old.shrink == ()
    assert not old.approximates

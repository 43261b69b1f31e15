"""`laxity optimize`, as people and scripts use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scheduler.cli.inputs import load_array, load_items
from scheduler.cli.optimize import SEED
from scheduler.cli.streams import WrongUsage

CONFIGS = Path(__file__).parents[2] / "configs"
DATA = CONFIGS / "digits_heldout.npz"
IMAGE = {"name": "image", "dtype": "float32", "shape": [1, 2]}
MASK = {"name": "mask", "dtype": "bool", "shape": [2]}


@pytest.fixture
def models(tmp_path):
    home = tmp_path / "models" / "digits"
    home.mkdir(parents=True)
    shutil.copy(CONFIGS / "models" / "digits" / "small.onnx", home)
    (home / "model.yaml").write_text("variants: {small: {file: small.onnx}}\n")
    return home.parent


@pytest.fixture
def optimize(models, laxity):
    def run(*args: str) -> tuple[int, str, str]:
        found: tuple[int, str, str] = laxity("optimize", *args, "--models", str(models))
        return found

    return run


def test_people_see_what_is_lost_and_gained(optimize, models):
    inputs = ("--input", f"{DATA}:images", "--labels", f"{DATA}:labels", "--calibrate", "64")
    status, out, _ = optimize("digits", *inputs)
    assert status == 0
    assert "digits/small-int8, made of small; measured on 476 items" in out
    for said in ("accuracy", "same answer", "p50 ms, openvino", "a running box serves it"):
        assert said in out
    assert "small-int8: {file: small-int8.onnx" in (models / "digits/model.yaml").read_text()
    status, _, err = optimize("digits", *inputs)
    assert (status, err) == (1, "laxity: there is a variant 'small-int8' already\n")


def test_scripts_get_figures(optimize):
    status, out, _ = optimize("digits", "--to", "fp16", "--name", "half", "--json")
    made = json.loads(out)
    assert status == 0
    assert (made["model"], made["name"], made["random"]) == ("digits", "half", True)
    assert made["losses"]["agreement"] > 0.9
    assert made["refused"] is None


def test_what_loses_too_much_is_said_and_fails(optimize, models, tmp_path):
    with np.load(DATA) as file:
        images = file["images"][:40].astype(np.float32)
    images[np.random.default_rng(SEED).permutation(40)[0]] = 0  # the one that ranges are seen on
    np.save(tmp_path / "poor.npy", images)
    status, out, _ = optimize("digits", "--input", str(tmp_path / "poor.npy"), "--calibrate", "1")
    assert status == 1
    assert "not added: it loses" in out
    assert not list(models.glob("digits/*int8*"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["digits", "--to", "int3"], "accepted are int8 and fp16"),
        (["digits"], "int8 needs typical items"),
        (["digits", "--labels", "x.npy", "--to", "fp16"], "name these with --input"),
        (["digits", "--calibrate", "5", "--to", "fp16"], "--calibrate goes with --to int8"),
        (["digit"], "did you mean 'digits'?"),
        (["digits", "--from", "smal"], "did you mean 'small'?"),
        (
            ["digits", "--input", f"{DATA}:images", "--labels", f"{DATA}:images"],
            "expected integers [540], one for each item",
        ),
    ],
)
def test_mistakes_are_named(optimize, args, said):
    status, out, err = optimize(*args)
    assert (status, out) == (2, "")
    assert said in err


class TestManyItems:
    def test_each_is_conformed(self, tmp_path):
        np.savez(tmp_path / "a.npz", image=np.arange(6, dtype=np.uint8).reshape(3, 2))
        np.save(tmp_path / "m.npy", np.ones((3, 2), bool))
        texts = [str(tmp_path / "a.npz"), f"mask={tmp_path / 'm.npy'}"]
        items = load_items(texts, [IMAGE, MASK])
        assert len(items) == 3
        np.testing.assert_array_equal(items[2]["image"], np.array([[4, 5]], np.float32))
        assert items[2]["mask"].dtype == bool
        np.testing.assert_array_equal(load_array(str(tmp_path / "m.npy")), np.ones((3, 2), bool))

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            (["image={0}/two.npy", "mask={0}/three.npy"], "found 2 of image, 3 of mask"),
            (["image={0}/two.npy"], "no --input for mask"),
            (["image={0}/two.npy", "image={0}/two.npy"], "'image' is given twice"),
            (["picture={0}/two.npy"], "the model has no input 'picture'; it has image, mask"),
            (["{0}/two.npy[1]"], "is one item; an array of many is needed"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path, texts, said):
        np.save(tmp_path / "two.npy", np.zeros((2, 2), np.float32))
        np.save(tmp_path / "three.npy", np.zeros((3, 2), bool))
        with pytest.raises(WrongUsage, match=said.replace("?", r"\?")):
            load_items([text.format(tmp_path) for text in texts], [IMAGE, MASK])

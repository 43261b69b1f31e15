"""What every server of the suite serves, and how a box describes it."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper

from scheduler.core.signature import STRING, Signature, TensorSpec
from tests.daemon.cloud.boxes import DIGITS
from tests.workers.onnx_models import constant, model, save, slow, tensor, words
from workers.link import ModelCard

MAX_BATCH = 4


def pair() -> ModelProto:
    """Two inputs, two outputs: `sum = a + b`, `difference = a - b`."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
    ]
    ends = [[tensor(name, "float32", ["N", 3]) for name in names] for names in PAIR]
    return model(nodes, *ends)


def picky() -> ModelProto:
    """Looks an index up in a table of four; fails on one beyond it."""
    table = constant("table", np.arange(8, dtype=np.float32).reshape(4, 2))
    node = helper.make_node("Gather", ["table", "index"], ["row"])
    ends = [tensor("index", "int64", ["N", 1])], [tensor("row", "float32", ["N", 1, 2])]
    return model([node], *ends, [table])


PAIR = ("a", "b"), ("sum", "difference")


def _card(name: str, inputs: Specs, outputs: Specs, most: int) -> ModelCard:
    return ModelCard(name, "", Signature(inputs, outputs, True), ("only",), most)


Specs = tuple[TensorSpec, ...]


_A, _B, _SUM, _DIFFERENCE = (TensorSpec(n, "float32", (3,)) for n in (*PAIR[0], *PAIR[1]))
_INDEX, _ROW = TensorSpec("index", "int64", (1,)), TensorSpec("row", "float32", (1, 2))
_TEXT, _SAME = (TensorSpec(n, STRING, (None,)) for n in ("text", "same"))
_CODE = TensorSpec("code", "int64", (None,))
_X, _Y = (TensorSpec(n, "float32", (1, 1)) for n in "xy")
CARDS = {
    "digits": DIGITS,
    "pair": _card("pair", (_A, _B), (_SUM, _DIFFERENCE), MAX_BATCH),
    "picky": _card("picky", (_INDEX,), (_ROW,), MAX_BATCH),
    "slow": _card("slow", (_X,), (_Y,), 1),
    "words": _card("words", (_TEXT,), (_SAME, _CODE), MAX_BATCH),
}
VARIANTS = dict.fromkeys(CARDS, "only") | {"digits": "small"}


def make_repository(root: Path) -> dict[str, Path]:
    """A repository of laxity's; the file of each model, by name."""
    files = {name: root / name / "model.onnx" for name in CARDS}
    for name, made in (
        ("pair", pair()),
        ("picky", picky()),
        ("slow", slow(layers=12, keepdims=True)),
        ("words", words()),
    ):
        save(made, files[name])
    (root / "digits").mkdir()
    digits = Path(str(resources.files("configs"))) / "models/digits/small.onnx"
    shutil.copy(digits, files["digits"])
    for name, variant in VARIANTS.items():
        said = {
            "variants": {variant: {"file": "model.onnx"}},
            "runtimes": ["onnxruntime"],
            "max_batch": CARDS[name].max_batch,
        }
        (root / name / "model.yaml").write_text(json.dumps(said))
    return files

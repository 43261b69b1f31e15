"""The share in time of texts of different lengths, padded to a few lengths and as they are.

    python -m benchmarks.padded [--json FILE] [--rate PER_S] [--seconds S] [--rounds N]

A real box serves a small transformer. The same arrivals are played to it with and without `pad` in
`model.yaml`, in turn. `accelerator` is an emulated device whose batches take 8 ms and 0.5 ms per
item, whatever the length, as on a GPU; `openvino` and `onnxruntime` are the CPU. `fresh` is the
first round after the start of a box, `warm` the mean of the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.figures import write_figures
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client, LaxityError

DEADLINE_MS = 60.0
LENGTHS = (16, 32, 48, 64, 96, 128)
WIDTH, HEADS, LAYERS, WORDS = 256, 4, 4, 1000
DEVICES: dict[str, dict[str, Any]] = {
    "accelerator": {
        "runtimes": ["emulated"],
        "options": {"base_ms": 8.0, "per_item_ms": 0.5, "jitter": 0.02},
    },
    "openvino": {"runtimes": ["openvino"]},
    "onnxruntime": {"runtimes": ["onnxruntime"]},
}


def transformer() -> onnx.ModelProto:
    """`hidden` [N, L, 256] of token `ids` [N, L], of which those count where `mask` [N, L] is 1."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(value: Any) -> str:
        name = f"c{len(constants)}"
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(rows: int, columns: int) -> str:
        return constant(rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32))

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    apart = constant([0, 0, HEADS, WIDTH // HEADS])
    together = constant([0, 0, WIDTH])
    share = constant(np.float32((WIDTH / HEADS) ** -0.5))
    hidden = node("Gather", weights(WORDS, WIDTH), "ids")
    ignored = node("Sub", node("Cast", "mask", to=TensorProto.FLOAT), constant(np.float32(1)))
    bias = node("Unsqueeze", node("Mul", ignored, constant(np.float32(1e4))), constant([1, 2]))
    for _ in range(LAYERS):
        query, key, value = (
            node("Reshape", node("MatMul", hidden, weights(WIDTH, WIDTH)), apart) for _ in range(3)
        )
        query = node("Mul", node("Transpose", query, perm=[0, 2, 1, 3]), share)
        scores = node("MatMul", query, node("Transpose", key, perm=[0, 2, 3, 1]))
        attention = node("Softmax", node("Add", scores, bias), axis=-1)
        read = node("MatMul", attention, node("Transpose", value, perm=[0, 2, 1, 3]))
        read = node("Reshape", node("Transpose", read, perm=[0, 2, 1, 3]), together)
        hidden = node("Add", hidden, node("MatMul", read, weights(WIDTH, WIDTH)))
        inner = node("Relu", node("MatMul", hidden, weights(WIDTH, 4 * WIDTH)))
        hidden = node("Tanh", node("Add", hidden, node("MatMul", inner, weights(4 * WIDTH, WIDTH))))
    nodes.append(helper.make_node("Identity", [hidden], ["hidden"]))
    text = ["N", "L"]
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info(name, TensorProto.INT64, text) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*text, WIDTH])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def box(folder: Path, device: str, padded: bool) -> Iterator[Client]:
    """A box with the transformer on one device."""
    home = folder / "models/text"
    home.mkdir(parents=True)
    onnx.save(transformer(), home / "model.onnx")
    pad = f"{{pad: {{to: {list(LENGTHS)}}}}}"
    more = (
        f"inputs: {{ids: {pad}, mask: {pad}}}\noutputs: {{hidden: {{as_long_as: ids}}}}\n"
        if padded
        else f"profile_shapes: {{ids: [{LENGTHS[-1]}], mask: [{LENGTHS[-1]}]}}\n"
    )
    (home / "model.yaml").write_text(f"variants: {{only: {{file: model.onnx}}}}\n{more}")
    devices = [{"id": "cpu:0", **DEVICES[device]}]
    with (
        spawned_agent(folder, folder / "models", devices=devices) as url,
        Client(url) as client,
    ):
        yield client


def play(client: Client, rate_per_s: float, seconds: float, seed: int) -> dict[str, float]:
    """Send texts of log-normal lengths at Poisson arrivals; return the figures in time."""
    rng = np.random.default_rng(seed)
    sent = []
    due_s = time.monotonic()
    for _ in range(int(rate_per_s * seconds)):
        due_s += rng.exponential(1 / rate_per_s)
        length = int(np.clip(rng.lognormal(3.2, 0.6), 3, LENGTHS[-1]))
        text = {"ids": rng.integers(0, WORDS, length), "mask": np.ones(length, np.int64)}
        time.sleep(max(0.0, due_s - time.monotonic()))
        sent.append(client.submit("text", text, deadline_ms=DEADLINE_MS))
    batches = []
    for future in sent:
        try:
            batches.append(future.result().batch)
        except LaxityError:
            continue
    return {
        "in_time": round(len(batches) / len(sent), 4),
        "mean_batch": round(float(np.mean(batches or [0])), 2),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    for device in DEVICES:
        for name in ("as they are", "padded"):
            with (
                tempfile.TemporaryDirectory() as folder,
                box(Path(folder), device, name == "padded") as client,
            ):
                fresh, *rounds = [
                    play(client, given.rate, given.seconds, seed) for seed in range(given.rounds)
                ]
            warm = {key: round(float(np.mean([r[key] for r in rounds])), 4) for key in fresh}
            figures.setdefault(device, {})[name] = {"fresh": fresh, "warm": warm}
    write_figures(figures, given.json)


if __name__ == "__main__":
    main()

"""Trains the digits model that ships with laxity and writes its files.

Real handwriting, small enough to travel with the repository: scikit-learn's bundled scans. Two
networks for one question, so that a scheduler has a choice to make: `large` is more accurate and
takes milliseconds on one CPU thread, `small` takes microseconds.

Epochs and rates were chosen on folds of the training part; the held-out part only measures what is
written to model.yaml.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

SEED = 20240607
HELD_OUT = 0.3
OPSET = 18
INK_MAX = 16.0

MODEL_YAML = """\
# Handwritten digits, trained by examples/digits/train.py on scikit-learn's bundled scans.
description: Handwritten digits, 8x8 scans with values 0-16; scores are the probabilities of 0-9.
variants:
"""


@dataclass(frozen=True)
class Scans:
    """Scans and what they show: images uint8 [n, 8, 8] with values 0-16, labels uint8 [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def as_input(self) -> NDArray[np.float32]:
        """Returns the images as the networks take them: float32 [n, 1, 8, 8], values 0-16."""
        return self.images[:, None].astype(np.float32)


@dataclass(frozen=True)
class Recipe:
    """How one variant is built and trained."""

    build: Callable[[], nn.Sequential]
    epochs: int
    peak_rate: float
    batch_size: int


@dataclass(frozen=True)
class Measured:
    """What one written variant is like, seen through ONNX Runtime on one thread."""

    name: str
    file: Path
    parameters: int
    accuracy: float
    latency_ms: float


class InkToUnit(nn.Module):
    """Brings scans from 0-16 to 0-1; blank paper stays 0, which is what convolutions pad with."""

    def forward(self, image: Tensor) -> Tensor:
        """Scales a float32 [n, 1, 8, 8]."""
        return image / INK_MAX


def small_network() -> nn.Sequential:
    """Returns a perceptron with one hidden layer: [n, 1, 8, 8] to logits [n, 10]."""
    return nn.Sequential(InkToUnit(), nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def conv3x3(inputs: int, outputs: int) -> nn.Sequential:
    """Returns a convolution that keeps height and width, normalised and rectified."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def large_network() -> nn.Sequential:
    """Returns a convolutional network over the scan at 64x64: [n, 1, 8, 8] to logits [n, 10]."""
    return nn.Sequential(
        InkToUnit(),
        nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False),
        conv3x3(1, 48),
        *(conv3x3(48, 48) for _ in range(6)),
        nn.MaxPool2d(2),
        conv3x3(48, 64),
        conv3x3(64, 64),
        nn.MaxPool2d(2),
        conv3x3(64, 96),
        nn.MaxPool2d(2),
        conv3x3(96, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


# In order of preference: model.yaml lists them so.
RECIPES = {
    "large": Recipe(large_network, epochs=7, peak_rate=4e-3, batch_size=32),
    "small": Recipe(small_network, epochs=150, peak_rate=1e-2, batch_size=64),
}


def load_scans() -> tuple[Scans, Scans]:
    """Returns the training and the held-out scans, split alike each time, digits in proportion."""
    digits = load_digits()
    train_x, held_x, train_y, held_y = train_test_split(
        digits.images.astype(np.uint8),
        digits.target.astype(np.uint8),
        test_size=HELD_OUT,
        stratify=digits.target,
        random_state=SEED,
    )
    return Scans(train_x, train_y), Scans(held_x, held_y)


def jitter(images: Tensor, random: torch.Generator) -> Tensor:
    """Turns, scales and shifts each float32 [n, 1, 8, 8] image a little, as another hand might."""
    n = len(images)

    def uniform(spread: float) -> Tensor:
        return (torch.rand(n, generator=random) * 2 - 1) * spread

    angle, scale = uniform(0.2), 1 + uniform(0.1)
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    # affine_grid's unit is half an image, so 0.125 is half a pixel of an 8x8 scan.
    rows = [torch.stack([cos, -sin, uniform(0.125)], 1), torch.stack([sin, cos, uniform(0.125)], 1)]
    grid = nn.functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def minibatches(
    images: Tensor, labels: Tensor, size: int, random: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields shuffled batches of `size`, half of the images jittered; drops the odd rest."""
    order = torch.randperm(len(images), generator=random)
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        batch = images[chosen]
        moved = torch.rand(size, generator=random) < 0.5
        yield torch.where(moved[:, None, None, None], jitter(batch, random), batch), labels[chosen]


def train(recipe: Recipe, scans: Scans) -> nn.Sequential:
    """Trains a network from its seeds and returns it in evaluation mode."""
    torch.manual_seed(SEED)
    random = torch.Generator().manual_seed(SEED)
    images = torch.from_numpy(scans.as_input())
    labels = torch.from_numpy(scans.labels.astype(np.int64))
    network = recipe.build().to(memory_format=torch.channels_last)  # half the time on a CPU
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    steps = recipe.epochs * (len(images) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.peak_rate, total_steps=steps)
    for _ in range(recipe.epochs):
        for batch, truth in minibatches(images, labels, recipe.batch_size, random):
            optimizer.zero_grad()
            loss(network(batch), truth).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def export(network: nn.Sequential, file: Path) -> None:
    """Writes the network and a softmax as one ONNX file: `image` [N, 1, 8, 8], `scores` [N, 10]."""
    torch.onnx.export(
        nn.Sequential(network, nn.Softmax(dim=1)).eval(),
        (torch.zeros(2, 1, 8, 8),),
        file,
        input_names=["image"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )
    without_notes(file)


def without_notes(file: Path) -> None:
    """Takes the exporter's notes out of an ONNX file: paths and stacks of the machine it ran on."""
    model = onnx.load(file)
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for end in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        end.ClearField("metadata_props")
    onnx.save(model, file)


def one_thread_session(file: Path) -> onnxruntime.InferenceSession:
    """Opens an ONNX file on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def median_latency_ms(session: onnxruntime.InferenceSession, image: NDArray[np.float32]) -> float:
    """Returns the median time of 200 runs of one batch, after 20 that are not counted."""
    taken_ns = []
    for _ in range(220):
        start_ns = time.perf_counter_ns()
        session.run(["scores"], {"image": image})
        taken_ns.append(time.perf_counter_ns() - start_ns)
    return statistics.median(taken_ns[20:]) / 1e6


def measure(name: str, file: Path, parameters: int, held_out: Scans) -> Measured:
    """Measures the written file, not the network it came from: the file is what ships."""
    session = one_thread_session(file)
    images = held_out.as_input()
    (scores,) = session.run(["scores"], {"image": images})
    accuracy = float((scores.argmax(axis=1) == held_out.labels).mean())
    return Measured(name, file, parameters, accuracy, median_latency_ms(session, images[:1]))


def write_model_yaml(folder: Path, variants: list[Measured]) -> None:
    """Writes model.yaml, variants in the order given."""
    lines = [
        f"  {v.name}: {{file: {v.file.name}, precision: fp32, accuracy: {v.accuracy:.4f}}}\n"
        for v in variants
    ]
    (folder / "model.yaml").write_text(MODEL_YAML + "".join(lines))


def print_table(variants: list[Measured], held_out: int) -> None:
    """Prints the results as a Markdown table."""
    print(f"| variant | accuracy ({held_out} held-out scans) | parameters | file | batch 1 |")
    print("|---|---|---|---|---|")
    for v in variants:
        size_kb = v.file.stat().st_size / 1e3
        print(
            f"| {v.name} | {v.accuracy:.4f} | {v.parameters:,} "
            f"| {size_kb:,.0f} kB | {v.latency_ms:.3f} ms |"
        )


def main() -> None:
    """Trains, exports and measures both variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("configs"), help="folder to write to")
    out: Path = parser.parse_args().out
    folder = out / "models" / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # one thread adds in one order, so a seed gives the same weights

    training, held_out = load_scans()
    np.savez_compressed(out / "digits_heldout.npz", images=held_out.images, labels=held_out.labels)
    variants = []
    for name, recipe in RECIPES.items():
        network = train(recipe, training)
        file = folder / f"{name}.onnx"
        export(network, file)
        parameters = sum(p.numel() for p in network.parameters())
        variants.append(measure(name, file, parameters, held_out))
    write_model_yaml(folder, variants)
    print_table(variants, len(held_out.labels))


if __name__ == "__main__":
    main()

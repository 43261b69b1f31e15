"""What shrinking inputs gains on a slow link, and what it costs in precision.

    python -m benchmarks.shrink --json FILE [--seconds S] [--models FOLDER]

A real agent runs a face detector (UltraFace slim-320: 921,600 bytes of float32 per image) behind a
link emulator. The near end is a scheduler in this process without a device, so that everything
depends on the link. The model is served four times, with different forms allowed by its owner:
none, float16, JPEG, or both. The same arrivals are played to each, at three link rates.

The error of the answers is measured without a link: the same images run through ONNX Runtime in
their original form and after shrinking and restoring them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import yaml
from numpy.typing import NDArray

from benchmarks.figures import write_figures
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent
from replay.links import LinkEmulator, OneWay
from scheduler.config.cloud import CloudConfig
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.cloud.dialing import cloud_link
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.encodings.codec import encoded, restoration
from scheduler.encodings.text import text_of
from scheduler.policy_loading import NamedPolicy
from scheduler.wire import pack_tensors
from workers.link import ModelCard
from workers.model import Encoding, Model
from workers.repository import load_repository

MODELS = Path(__file__).parents[2] / "shared" / "data" / "models"
FACES = "ultraface_slim320/version-slim-320.onnx"
MBPS = (5.0, 10.0, 20.0)
RTT_MS = 15.0
DEADLINE_MS = 800.0
RATE_PER_S = 1.0
EXPECTED_MS = 100.0
"""The expected time of the model, and of an answer of 106 KB on its way back."""

RANGE = [-127 / 128, 1.0]
"""The value range of UltraFace's input, (pixel - 127) / 128."""

JPEG: dict[str, Any] = {"jpeg": {"quality": 90, "range": RANGE}}
SAID: dict[str, list[Any]] = {
    "as-is": [],
    "float16": ["float16"],
    "jpeg": [JPEG],
    "both": ["float16", JPEG],
}
Image = NDArray[np.float32]


def photographs(folder: Path) -> dict[str, Image]:
    """The images of the published models, in UltraFace's input format."""
    found = {"faces": np.load(next((folder / FACES).parent.glob("*.npz")))["in:input"][0]}
    for path in sorted((folder / "squeezenet_fp16").glob("*.npz")):
        bgr = np.load(path)["in:data_0"][0].astype(np.float32)
        rows, columns = (np.arange(size) * 224 // size for size in (240, 320))
        rgb = bgr[::-1][:, rows][:, :, columns]
        found[path.name.split(".")[1]] = np.ascontiguousarray((rgb - 127) / 128)
    return found


# -- over the link


def make_models(root: Path, folder: Path) -> None:
    """The same model under four names, each with different forms allowed."""
    for name, shrink in SAID.items():
        (root / name).mkdir(parents=True)
        (root / name / "model.onnx").symlink_to(folder / FACES)
        said = {
            "variants": {"slim": {"file": "model.onnx"}},
            "max_batch": 1,
            "inputs": {"input": {"shrink": shrink}},
        }
        (root / name / "model.yaml").write_text(yaml.safe_dump(said))


async def play(driver: Driver, model: str, image: Image, seconds: float) -> dict[str, Any]:
    """Play Poisson arrivals of one model, and return their results."""
    gaps = np.random.default_rng(1).exponential(1 / RATE_PER_S, int(3 * RATE_PER_S * seconds))
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    asked: list[asyncio.Future[tuple[Answer, float]]] = []
    for at_s in np.cumsum(gaps):
        if at_s >= seconds:
            break
        await asyncio.sleep(max(0.0, start_s + at_s - loop.time()))
        asked.append(ask(driver, model, image))
    ended = await asyncio.gather(*asked)
    done_ms = sorted(ms for answer, ms in ended if answer.outcome is Outcome.COMPLETED)
    ends = Counter(
        str(answer.notes.get("shrunk", "as it is"))
        if answer.outcome is Outcome.COMPLETED
        else answer.outcome.value
        for answer, _ in ended
    )
    return {
        "requests": len(ended),
        "in_time": round(len(done_ms) / len(ended), 3),
        "p50_ms": round(float(np.median(done_ms)), 1) if done_ms else None,
        "most_ms": round(done_ms[-1], 1) if done_ms else None,
        "ends": dict(ends),
    }


def ask(driver: Driver, model: str, image: Image) -> asyncio.Future[tuple[Answer, float]]:
    """Send one request; the future has its answer and its time in milliseconds."""
    future: asyncio.Future[tuple[Answer, float]] = asyncio.get_running_loop().create_future()
    now_ns = driver.clock_ns()
    specs, buffers = pack_tensors({"input": image})

    def reply(answer: Answer) -> None:
        future.set_result((answer, (driver.clock_ns() - now_ns) / 1e6))

    kind = RequestClass(model, None, (image.shape,))
    due_ns = now_ns + int(DEADLINE_MS * 1e6)
    body = memoryview(b"".join(buffers))
    driver.submit([Submission(kind, specs, body, due_ns, 3, 1.0, False, reply)])
    return future


async def over_links(
    folder: Path, models: Path, door: str, image: Image, seconds: float
) -> dict[str, Any]:
    """Measure every link rate with every model."""
    return {f"{m:g}": await at_rate(folder, models, door, m, image, seconds) for m in MBPS}


async def at_rate(
    folder: Path, models: Path, door: str, mbps: float, image: Image, seconds: float
) -> dict[str, Any]:
    """Measure the requests of each model over one link rate."""
    way = OneWay.half(RTT_MS, mbps=mbps)
    driver = Driver(NamedPolicy("goodput", {}))
    cards = [card_of(model) for model in load_repository(models).models.values()]
    driver.catalog.learn("here", cards, [])
    async with LinkEmulator("127.0.0.1:0", door, up=way, down=way) as link:
        url = f"grpc://{link.address.partition('://')[2]}"
        # On a busy machine, delayed probes must not open the breaker, and delayed trials must not
        # be all that is ever known of a model.
        said = {"probe_s": 60.0, "expected_ms": EXPECTED_MS, "bandwidth_mbps": mbps}
        config = CloudConfig.model_validate({"name": "far", "url": url, **said})
        driver.add_target("far", cloud_link(config, driver, folder / f"{mbps:g}"))
        try:
            while not driver.core.targets:
                await asyncio.sleep(0.05)
            found = {name: await play(driver, name, image, seconds) for name in SAID}
            [far] = driver.status()["targets"]
            return {**found, "way": far["way"], "forms": far["shrunk"]}
        finally:
            await driver.close()


def card_of(model: Model) -> ModelCard:
    """The card that a worker would send for a model."""
    variants = tuple(variant.name for variant in model.variants)
    return ModelCard(model.name, "", model.signature, variants, 1, model.digest, None, model.shrink)


# -- how far off


def compared(folder: Path, images: Mapping[str, Image]) -> Iterator[dict[str, Any]]:
    """Compare the answers to shrunk images with those to the original images."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / FACES, options)
    low, high = RANGE
    jpegs = [
        Encoding("jpeg", quality, "NCHW", ((high - low) / 255,), (low,)) for quality in (75, 90, 95)
    ]
    for encoding in (Encoding("float16"), *jpegs):
        for name, image in images.items():
            small = encoded(encoding, image)
            assert small is not None
            value = small if encoding.name == "float16" else [small.tobytes()]
            back = restoration(
                "input", text_of(encoding), value, "float32", image.shape, 1 << 30
            ).run()
            exact, off = (session.run(None, {"input": each[None]}) for each in (image, back))
            kept = exact[0][0, :, 1] > 0.5
            yield {
                "form": f"{encoding.name} {encoding.quality or ''}".strip(),
                "image": name,
                "bytes": small.nbytes,
                "input_steps": round(float(np.max(np.abs(back - image))) * 128, 2),
                "score": round(float(np.max(np.abs(off[0] - exact[0]))), 4),
                "box": round(float(abs(off[1] - exact[1])[0, kept].max()), 4) if kept.any() else 0,
                "faces": [faces(exact), faces(off)],
            }


def faces(outputs: Any) -> int:
    """The number of boxes that score above 0.7 and overlap no better one by more than 0.3."""
    scores, boxes = outputs[0][0, :, 1], outputs[1][0]
    order = [i for i in np.argsort(-scores) if scores[i] > 0.7]
    kept: list[Any] = []
    for i in order:
        if all(_overlap(boxes[i], box) <= 0.3 for box in kept):
            kept.append(boxes[i])
    return len(kept)


def _overlap(one: Any, other: Any) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    both = float(np.prod(np.maximum(0, high - low)))
    areas = sum(float(np.prod(box[2:] - box[:2])) for box in (one, other))
    return both / (areas - both)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--models", type=Path, default=MODELS, metavar="FOLDER")
    given = parser.parse_args()
    if not given.models.is_dir():
        print(f"no published models at {given.models}; name their folder with --models")
        return 1
    images = photographs(given.models)
    figures: dict[str, Any] = {
        "deadline_ms": DEADLINE_MS,
        "rate_per_s": RATE_PER_S,
        "rtt_ms": RTT_MS,
        "image_bytes": images["faces"].nbytes,
        "off": list(compared(given.models, images)),
    }
    door = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder / "models", given.models)
        with spawned_agent(folder, folder / "models", listen={"grpc": door}):
            work = over_links(folder, folder / "models", door, images["faces"], given.seconds)
            figures["mbps"] = asyncio.run(work)
    write_figures(figures, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

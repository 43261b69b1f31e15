"""What smaller inputs bring over a slow link, and what they cost in precision.

    python -m benchmarks.shrink --json FILE [--seconds S] [--models FOLDER]

Two real agents with a link emulator between them. The far one runs a face detector (UltraFace
slim-320: 921,600 bytes of float32 an image); the near one has an emulated device that is far too
slow, so that all depends on the link. The model is there four times, with other words of its owner:
nothing, float16, JPEG, or both. The same arrivals are played to each, at three rates of the link.

How far off answers are is measured without a link: the same images, as they are and made smaller
and back, through ONNX Runtime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import yaml
from numpy.typing import NDArray

from benchmarks.doors import free_port
from benchmarks.figures import write_figures
from benchmarks.spawned_agent import spawned_agent
from benchmarks.spill import Relay, emulated
from replay.links import OneWay
from scheduler import Client, LaxityError
from scheduler.encodings.codec import encoded, restoration
from scheduler.encodings.text import text_of
from workers.model import Encoding

MODELS = Path(__file__).parents[2] / "shared" / "data" / "models"
FACES = "ultraface_slim320/version-slim-320.onnx"
MBPS = (5.0, 10.0, 20.0)
RTT_MS = 15.0
DEADLINE_MS = 600.0
RATE_PER_S = 1.0
RANGE = [-127 / 128, 1.0]
"""UltraFace takes (pixel - 127) / 128."""

JPEG: dict[str, Any] = {"jpeg": {"quality": 90, "range": RANGE}}
SAID: dict[str, list[Any]] = {
    "as-is": [],
    "float16": ["float16"],
    "jpeg": [JPEG],
    "both": ["float16", JPEG],
}
TOO_SLOW = {"base_ms": 900.0, "per_item_ms": 1.0}

Image = NDArray[np.float32]


def photographs(folder: Path) -> dict[str, Image]:
    """The images of the published models, as UltraFace takes them."""
    found = {"faces": np.load(next((folder / FACES).parent.glob("*.npz")))["in:input"][0]}
    for path in sorted((folder / "squeezenet_fp16").glob("*.npz")):
        bgr = np.load(path)["in:data_0"][0].astype(np.float32)
        rows, columns = (np.arange(size) * 224 // size for size in (240, 320))
        rgb = bgr[::-1][:, rows][:, :, columns]
        found[path.name.split(".")[1]] = np.ascontiguousarray((rgb - 127) / 128)
    return found


# -- over the link


def make_models(root: Path, folder: Path) -> None:
    """The same model under four names, each with what its owner allows."""
    for name, shrink in SAID.items():
        (root / name).mkdir(parents=True)
        (root / name / "model.onnx").symlink_to(folder / FACES)
        said = {
            "variants": {"slim": {"file": "model.onnx"}},
            "max_batch": 1,
            "inputs": {"input": {"shrink": shrink}},
        }
        (root / name / "model.yaml").write_text(yaml.safe_dump(said))


def play(client: Client, model: str, image: Image, seconds: float) -> dict[str, Any]:
    """Poisson arrivals of one model; what became of them."""
    gaps = np.random.default_rng(1).exponential(1 / RATE_PER_S, int(3 * RATE_PER_S * seconds))
    due_s = [float(at) for at in np.cumsum(gaps) if at < seconds]
    start_s = time.monotonic()
    sent: list[tuple[float, Future[Any], list[float]]] = []
    for at_s in due_s:
        time.sleep(max(0.0, start_s + at_s - time.monotonic()))
        done: list[float] = []
        asked_s = time.monotonic()
        future = client.submit(model, {"input": image}, deadline_ms=DEADLINE_MS)
        future.add_done_callback(lambda _, done=done: done.append(time.monotonic()))
        sent.append((asked_s, future, done))
    latencies_ms: list[float] = []
    ends: Counter[str] = Counter()
    for asked_s, future, done in sent:
        try:
            result = future.result()
        except LaxityError as error:
            ends[error.code] += 1
            continue
        latencies_ms.append(1e3 * (done[0] - asked_s))
        ends[result.notes.get("shrunk", "as it is")] += 1
    return {
        "requests": len(sent),
        "in_time": round(len(latencies_ms) / len(sent), 3),
        "p50_ms": round(float(np.median(latencies_ms)), 1) if latencies_ms else None,
        "p95_ms": round(float(np.quantile(latencies_ms, 0.95)), 1) if latencies_ms else None,
        "ends": dict(ends),
    }


def over_links(folder: Path, models: Path, image: Image, seconds: float) -> dict[str, Any]:
    """Every rate of the link with every word of the owner."""
    make_models(folder / "models", models)
    port = free_port()
    (folder / "far").mkdir()
    listen = {"grpc": f"127.0.0.1:{port}", "native": f"unix://{folder}/far/bench.sock"}
    figures: dict[str, Any] = {}
    with spawned_agent(folder / "far", folder / "models", listen=listen):
        for mbps in MBPS:
            near = folder / f"near-{mbps:g}"
            near.mkdir()
            way = OneWay.half(RTT_MS, mbps=mbps)
            with Relay(f"127.0.0.1:{port}", None, way) as relay:
                figures[f"{mbps:g}"] = at_rate(near, folder / "models", relay, image, seconds)
    return figures


def at_rate(near: Path, models: Path, relay: Relay, image: Image, seconds: float) -> dict[str, Any]:
    """What becomes of each model's requests over one link."""
    # Nobody else is on the link: probes that a busy machine holds up must not open the breaker.
    cloud = [{"name": "far", "url": f"grpc://{relay.address}", "probe_s": 60.0}]
    with (
        spawned_agent(near, models, devices=emulated(TOO_SLOW), cloud=cloud) as url,
        Client(url) as client,
    ):
        found: dict[str, Any] = {name: play(client, name, image, seconds) for name in SAID}
        targets = {target["id"]: target for target in client.status()["targets"]}
        return {**found, "way": targets["far"]["way"], "forms": targets["far"]["shrunk"]}


# -- how far off


def compared(folder: Path, images: Mapping[str, Image]) -> Iterator[dict[str, Any]]:
    """The answers to images that were made smaller beside those to the images as they are."""
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
                "input_steps": round(float(abs(back - image).max()) * 128, 2),
                "score": round(float(abs(off[0] - exact[0]).max()), 4),
                "box": round(float(abs(off[1] - exact[1])[0, kept].max()), 4) if kept.any() else 0,
                "faces": [faces(exact), faces(off)],
            }


def faces(outputs: Any) -> int:
    """How many boxes score above 0.7 and overlap no better one by more than 0.3."""
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
    """Measures and writes."""
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
    with tempfile.TemporaryDirectory() as folder:
        figures["mbps"] = over_links(Path(folder), given.models, images["faces"], given.seconds)
    write_figures(figures, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Latency of each runtime on each model, and what laxity's runtime layer adds to the bare library.

    python -m benchmarks.runtimes --json FILE [--models FOLDER] [--device cpu:0] [--cores 1]

Batches of 1 to 16, from items to items as a device's host runs them: stacked, run, taken apart.
The bare call is the library's own, on the same threads, precision and batch, ready stacked. Both
take turns, so that they meet the same disturbances; medians in microseconds. `added_us` is the
difference of the two tenth percentiles: what is left when nothing else disturbs. Without --models
it takes the digits models of this repository, and the published ones of ../shared/data where they
are.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.figures import write_figures
from workers.batches import ItemRunner
from workers.device_options import expose_gpu
from workers.fingerprint import processor_name
from workers.judging import batch_limit
from workers.model import Model, Variant
from workers.repository import load_repository
from workers.resources import pin_thread
from workers.runtimes import RUNTIMES
from workers.runtimes.base import Builder, DeviceSpec, ModelLoadError, Runtime, Session
from workers.sampling import sample_items
from workers.stacking import stack_items

BATCHES = (1, 2, 4, 8, 16)
ROUNDS = 400
SECONDS = 3.0
WARM_UP = 10
AIM_SHARE = 0.03
AIM_US = 30.0

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "models"
PUBLISHED_FILES = {
    "squeezenet-fp16": ("squeezenet_fp16/SqueezeNet_fp16.onnx", "fp16"),
    "ultraface-slim320": ("ultraface_slim320/version-slim-320.onnx", "fp32"),
}

Call = Callable[[], object]


def repositories(named: Path | None) -> Iterator[Path]:
    """The folders of models to measure."""
    if named is not None:
        yield named
        return
    yield ROOT / "configs" / "models"
    if not PUBLISHED.is_dir():
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, precision) in PUBLISHED_FILES.items():
            home = Path(folder, name)
            home.mkdir()
            (home / "model.onnx").symlink_to(PUBLISHED / file)
            (home / "model.yaml").write_text(
                f"variants: {{{precision}: {{file: model.onnx, precision: {precision}}}}}"
            )
        yield Path(folder)


def bare_openvino(session: Any, model: Model, x: dict[str, Any]) -> Call:
    """The library's own call on the model that the session has compiled."""
    request = session._requests[0].get_compiled_model().create_infer_request()
    return lambda: request.infer(x, share_inputs=True)


def bare_onnxruntime(session: Any, model: Model, x: dict[str, Any]) -> Call:
    """The library's own call, on the session's own `InferenceSession`."""
    return lambda: session._session.run(None, x)


BARE: dict[str, Callable[[Any, Model, dict[str, Any]], Call]] = {
    "openvino": bare_openvino,
    "onnxruntime": bare_onnxruntime,
    "onnxruntime-cuda": bare_onnxruntime,
    "onnxruntime-tensorrt": bare_onnxruntime,
}
"""TensorRT has no single call from arrays to arrays to compare with."""


def alternate(*calls: Call) -> list[list[int]]:
    """Nanoseconds of each call, taken in turn."""
    times: list[list[int]] = [[] for _ in calls]
    for call in calls:
        for _ in range(WARM_UP):
            call()
    began = time.perf_counter()
    while len(times[0]) < ROUNDS and (len(times[0]) < 20 or time.perf_counter() - began < SECONDS):
        turn = list(zip(calls, times, strict=True))
        for call, own in turn if len(times[0]) % 2 else reversed(turn):
            start_ns = time.perf_counter_ns()
            call()
            own.append(time.perf_counter_ns() - start_ns)
    return times


def quantile(samples: list[int], share: float) -> float:
    """A quantile of samples, in their unit."""
    return float(np.quantile(samples, share))


def measure_batch(
    runtime: str, session: Session, model: Model, batch: int
) -> dict[str, float | bool]:
    """One batch size on one session."""
    x = stack_items(sample_items(model, batch))
    # As in a message: the items of each tensor lie one after another.
    items = [{name: array[i] for name, array in x.items()} for i in range(batch)]
    runner = ItemRunner(session, model.signature.batched)
    if runtime not in BARE:
        (layer,) = alternate(lambda: runner.run_batch(items))
        return {"layer_us": median(layer) / 1e3}
    bare, layer = alternate(
        BARE[runtime](session, model, x if model.signature.batched else items[0]),
        lambda: runner.run_batch(items),
    )
    bare_us = median(bare) / 1e3
    added_us = (quantile(layer, 0.1) - quantile(bare, 0.1)) / 1e3
    return {
        "bare_us": bare_us,
        "layer_us": median(layer) / 1e3,
        "p95_us": quantile(layer, 0.95) / 1e3,
        "added_us": added_us,
        "added_share": added_us / bare_us,
        "within_aim": added_us <= max(AIM_SHARE * bare_us, AIM_US),
    }


def measure_variant(
    runtime: Runtime, model: Model, variant: Variant, device: DeviceSpec
) -> dict[str, Any]:
    """All batch sizes of one variant with one runtime."""
    with tempfile.TemporaryDirectory() as cache:
        folder = Path(cache)
        if isinstance(runtime, Builder):
            runtime.build(model, variant, device, folder, lambda text: None)
        began = time.perf_counter()
        session = runtime.load(model, variant, device, folder)
        load_ms = (time.perf_counter() - began) * 1e3
        limit = batch_limit(session, model, max(BATCHES))
        figures = {
            str(batch): measure_batch(runtime.name, session, model, batch)
            for batch in BATCHES
            if batch <= limit
        }
        session.close()
    return {"load_ms": load_ms, "batches": figures}


def usable(device: DeviceSpec) -> Iterator[Runtime]:
    """The runtimes that compute on a device here; the others are told on stderr."""
    for name, make in RUNTIMES.items():
        runtime = make()
        if name == "emulated" or device.kind not in runtime.kinds:
            continue
        reason = runtime.missing() or runtime.unreachable(device)
        if reason is None:
            yield runtime
        else:
            print(f"{name}: {reason}", file=sys.stderr)


def measure(named: Path | None, device: DeviceSpec) -> dict[str, Any]:
    """Every model on every runtime."""
    runtimes = list(usable(device))
    results: dict[str, Any] = {}
    for root in repositories(named):
        for model in load_repository(root).models.values():
            for variant in model.variants:
                label = f"{model.name}/{variant.name}"
                for runtime in runtimes:
                    try:
                        figures = measure_variant(runtime, model, variant, device)
                    except ModelLoadError as error:
                        figures = {"refused": str(error)}
                    results.setdefault(label, {})[runtime.name] = figures
                    say(label, runtime.name, figures)
    return {
        "machine": processor_name(),
        "python": platform.python_version(),
        "device": device.id,
        "cores": list(device.cores),
        "versions": {runtime.name: runtime.version() for runtime in runtimes},
        "aim": f"added <= max({AIM_SHARE:.0%} of bare, {AIM_US:g} us)",
        "models": results,
    }


def say(label: str, runtime: str, figures: dict[str, Any]) -> None:
    """One line for each batch size, for people."""
    if "refused" in figures:
        print(f"{label:28} {runtime:12} refused: {figures['refused']}", file=sys.stderr)
        return
    for batch, found in figures["batches"].items():
        line = f"{label:28} {runtime:12} batch {batch:>2}: {found['layer_us']:10.1f} us"
        if "added_us" in found:
            line += f", added {found['added_us']:+7.1f} us ({found['added_share']:+.1%})"
        print(line, file=sys.stderr)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--models", type=Path, help="a model repository")
    parser.add_argument("--device", default="cpu:0", help="kind and number, like gpu:0")
    parser.add_argument("--cores", default="1", help="the CPU cores to use, like 1,2")
    args = parser.parse_args()
    kind: Any = args.device.partition(":")[0]
    cores = tuple(int(core) for core in args.cores.split(",")) if args.cores else ()
    device = DeviceSpec(args.device, kind, cores)
    pin_thread(device)
    expose_gpu(device)
    write_figures(measure(args.models, device), args.json)


if __name__ == "__main__":
    main()

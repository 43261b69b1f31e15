"""Latency of each runtime on each model, and what laxity's runtime layer adds to the library.

    python -m benchmarks.runtimes --json FILE [--models FOLDER] [--device cpu:0] [--cores 1]

Batches of 1 to 16 are run from items to items as a device's host does: stacked, run and split. The
bare call is the library's own, on the same session, threads, precision and batch, already stacked
in the same memory. `layer_us` is the median by the wall clock, including delays by other work; a
profile would give the same now.

`added_us` is the additional time of the layer, as in `benchmarks.paired`, with its 95 % confidence
interval. The interval is narrower than the aim, unless the time limit ended the comparison. On a
CPU it is the CPU time of the process, over all threads. Neither call waits for anything but its
core, so this equals the time on an otherwise idle core. On other devices it is wall-clock time, and
not reliable on a busy machine. `within_aim` is true or false if the whole interval is on one side
of the aim, and null if it contains the aim.

Without --models it takes the digits models of this repository, and the published ones in
../shared/data if present.
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

from benchmarks.figures import write_figures
from benchmarks.paired import Call, Difference, compare
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
ROUNDS = 60
AIM_SHARE = 0.03
AIM_US = 30.0

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "models"
PUBLISHED_FILES = {
    "squeezenet-fp16": ("squeezenet_fp16/SqueezeNet_fp16.onnx", "fp16"),
    "ultraface-slim320": ("ultraface_slim320/version-slim-320.onnx", "fp32"),
}


def repositories(named: Path | None) -> Iterator[Path]:
    """The model repositories to measure."""
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
    """The library's own call, on the session's own infer request."""
    request = session._requests[0]
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
"""The bare calls by runtime. TensorRT has no single call from arrays to arrays to compare with."""


def aim_ns(bare_ns: float) -> float:
    """How much the layer may add to a bare call."""
    return max(AIM_SHARE * bare_ns, AIM_US * 1e3)


def measure_batch(
    runtime: str, session: Session, model: Model, batch: int, device: DeviceSpec
) -> dict[str, Any]:
    """Measure one batch size on one session."""
    x = stack_items(sample_items(model, batch))
    # As in a message: the items of each tensor are adjacent in memory.
    items = [{name: array[i] for name, array in x.items()} for i in range(batch)]
    runner = ItemRunner(session, model.signature.batched)

    def layer() -> object:
        return runner.run_batch(items)

    figures: dict[str, Any] = {"layer_us": median(wall_times(layer)) / 1e3}
    if runtime in BARE:
        bare = BARE[runtime](session, model, x if model.signature.batched else items[0])
        clock_ns = time.process_time_ns if device.kind == "cpu" else time.perf_counter_ns
        figures |= figures_of(compare(bare, layer, aim_ns, clock_ns))
    return figures


def wall_times(call: Call) -> list[int]:
    """The wall-clock times of a call, in nanoseconds."""
    times = []
    for _ in range(ROUNDS):
        start_ns = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start_ns)
    return times


def figures_of(found: Difference) -> dict[str, Any]:
    """A comparison in microseconds, and whether it meets the aim."""
    aim = aim_ns(found.first_ns)
    undecided = found.low_ns <= aim < found.high_ns
    return {
        "bare_us": found.first_ns / 1e3,
        "added_us": found.added_ns / 1e3,
        "added_interval_us": [found.low_ns / 1e3, found.high_ns / 1e3],
        "added_share": found.added_ns / found.first_ns,
        "blocks": found.blocks,
        "within_aim": None if undecided else found.high_ns <= aim,
    }


def measure_variant(
    runtime: Runtime, model: Model, variant: Variant, device: DeviceSpec
) -> dict[str, Any]:
    """Measure all batch sizes of one variant with one runtime."""
    with tempfile.TemporaryDirectory() as cache:
        folder = Path(cache)
        if isinstance(runtime, Builder):
            runtime.build(model, variant, device, folder, lambda text: None)
        began = time.perf_counter()
        session = runtime.load(model, variant, device, folder)
        load_ms = (time.perf_counter() - began) * 1e3
        limit = batch_limit(session, model, max(BATCHES))
        figures = {
            str(batch): measure_batch(runtime.name, session, model, batch, device)
            for batch in BATCHES
            if batch <= limit
        }
        session.close()
    return {"load_ms": load_ms, "batches": figures}


def usable(device: DeviceSpec) -> Iterator[Runtime]:
    """The runtimes usable on a device here; the reasons against the others go to stderr."""
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
    """Measure every model on every runtime."""
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
    """Print a line for each batch size."""
    if "refused" in figures:
        print(f"{label:28} {runtime:12} refused: {figures['refused']}", file=sys.stderr)
        return
    for batch, found in figures["batches"].items():
        line = f"{label:28} {runtime:12} batch {batch:>2}: {found['layer_us']:10.1f} us"
        if "added_us" in found:
            low, high = found["added_interval_us"]
            line += (
                f", added {found['added_us']:+7.1f} us ({found['added_share']:+.1%}; "
                f"{low:+.1f} to {high:+.1f} in {found['blocks']}): {found['within_aim']}"
            )
        print(line, file=sys.stderr)


def main() -> None:
    """Measure and print."""
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

"""What a device host adds to the bare library: `python -m tests.workers.measure_overhead`.

Bare and hosted runs alternate, so that both meet the same disturbances; medians in microseconds.
The items of a batch lie one after another, as in a message, or apart, as when each came alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from tests.workers import onnx_models
from tests.workers.conftest import QUICK
from workers.device_host import DeviceHost
from workers.runtimes.base import DeviceSpec

CORES = (0,)
ROUNDS = 2000

Call = Callable[[], object]


def main() -> None:
    models = {
        "3 floats": (onnx_models.relu(), 3),
        "600 KB": (onnx_models.relu(width=150_528), 150_528),
        "dense 2048": (onnx_models.dense(width=2048), 2048),
    }
    for runtime, bare in (("openvino", bare_openvino), ("onnxruntime", bare_onnxruntime)):
        for name, (made, width) in models.items():
            for batch in (1, 8):
                report(f"{runtime:12} {name:10} batch {batch}", runtime, bare, made, width, batch)


def report(
    label: str,
    runtime: str,
    bare: Callable[[Path, np.ndarray], Call],
    made: onnx.ModelProto,
    width: int,
    batch: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = onnx_models.save(made, Path(folder, "models", "model", "1", "model.onnx"))
        spec = DeviceSpec("cpu:0", "cpu", CORES, (runtime,))
        host = DeviceHost(spec, Path(folder, "models"), Path(folder, "state"), batch, QUICK)
        list(host.prepare())
        x = np.random.default_rng(0).random((batch, width), np.float32)
        message = [{"x": row} for row in x]
        apart = [{"x": row.copy()} for row in x]
        bare_us, message_us, apart_us = alternate(
            bare(path, x),
            lambda: host.run("model", "1", message),
            lambda: host.run("model", "1", apart),
        )
        host.close()
    added = f"one message {message_us - bare_us:+6.1f}, apart {apart_us - bare_us:+6.1f}"
    print(f"{label}: bare {bare_us:8.1f} us, added: {added} us")


def alternate(*calls: Call) -> list[float]:
    times: list[list[int]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, own in zip(calls, times, strict=True):
            began_ns = time.perf_counter_ns()
            call()
            own.append(time.perf_counter_ns() - began_ns)
    return [median(own[len(own) // 10 :]) / 1e3 for own in times]


def bare_openvino(path: Path, x: np.ndarray) -> Call:
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": len(CORES),
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    request = openvino.Core().compile_model(path, "CPU", config).create_infer_request()
    return lambda: request.infer({"x": x}, share_inputs=True)


def bare_onnxruntime(path: Path, x: np.ndarray) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(CORES)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


if __name__ == "__main__":
    main()

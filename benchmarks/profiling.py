"""How long a device takes to get ten models ready, and when it starts to serve.

    python -m benchmarks.profiling --json FILE [--cores 1]

The models are those of `benchmarks.runtimes`, copied until there are ten with different digests.
`first_s` is when the first of them is served, `ready_s` when all are, and `again_s` when all are
after a restart, with the profiles of the first start.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from benchmarks.figures import write_figures
from benchmarks.runtimes import repositories
from workers.device_host import DeviceHost
from workers.fingerprint import processor_name
from workers.profiling import Effort, batch_ladder
from workers.repository import load_repository
from workers.runtimes.base import DeviceSpec

MODELS = 10
MAX_BATCH = 32
SECONDS_NS = 2_000_000_000
"""The default of `profile.seconds`."""


def originals() -> Iterator[tuple[onnx.ModelProto, str]]:
    """The models to copy, with their precisions."""
    for root in repositories(None):
        for model in load_repository(root).models.values():
            for variant in model.variants:
                yield onnx.load(variant.path), variant.precision


def fill(root: Path) -> None:
    """Make the models, each with its own digest."""
    found = itertools.cycle(list(originals()))
    for index, (made, precision) in zip(range(MODELS), found, strict=False):
        home = root / f"model-{index}"
        home.mkdir()
        made.doc_string = f"copy {index}"
        onnx.save(made, home / "model.onnx")
        entry = f"{{file: model.onnx, precision: {precision}}}"
        (home / "model.yaml").write_text(f"variants: {{a: {entry}}}")


def start(root: Path, state: Path, cores: tuple[int, ...]) -> list[float]:
    """Seconds after the start at which each model was served."""
    rungs = len(list(batch_ladder(MAX_BATCH)))
    effort = Effort(budget_ns=SECONDS_NS // rungs, total_ns=2 * SECONDS_NS)
    began = time.perf_counter()
    device = DeviceSpec("cpu:0", "cpu", cores)
    host = DeviceHost(device, root, state, MAX_BATCH, effort)
    served = []
    for offer in host.prepare():
        served.append(time.perf_counter() - began)
        print(f"{served[-1]:6.1f} s {offer.model} {offer.runtime}", file=sys.stderr)
    host.close()
    return served


def measure(cores: tuple[int, ...]) -> dict[str, Any]:
    """Measure a first start and a restart."""
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "models").mkdir()
        fill(folder / "models")
        load_before = os.getloadavg()[0]
        first = start(folder / "models", folder / "state", cores)
        again = start(folder / "models", folder / "state", cores)
    finally:
        shutil.rmtree(folder)
    return {
        "machine": processor_name(),
        "cores": list(cores),
        "load_average": load_before,
        "models": len(first),
        "first_s": first[0],
        "ready_s": first[-1],
        "again_s": again[-1],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--cores", default="1", help="the CPU cores to use, like 1,2")
    args = parser.parse_args()
    write_figures(measure(tuple(int(core) for core in args.cores.split(","))), args.json)


if __name__ == "__main__":
    main()

"""The time to get a durable task accepted: written to disk, synced, acknowledged.

    python -m benchmarks.durable_acks --json FILE

A caller submits tasks of 16 bytes to `benchmarks.task_box` (the real door, store and feeder,
without Ray) through the Python API: one at a time, and with many in flight, where tasks that arrive
while the disk is busy share the next sync. No target has the model, so nothing runs meanwhile.
`sync_p50_ms` is the time in which the bare disk appends 4 KB to a file and syncs it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.durable_kills import KilledBox, connected, wait_for_models
from benchmarks.figures import write_figures
from benchmarks.task_box import IDLE_MODEL

ONE_BY_ONE = 500
IN_FLIGHT = {16: 4_000, 64: 8_000, 512: 16_000}


def sync_p50_ms(folder: Path) -> float:
    """The median time of an append of 4 KB and its fdatasync."""
    number = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seconds = []
    for _ in range(200):
        start_s = time.perf_counter()
        os.write(number, bytes(4096))
        os.fdatasync(number)
        seconds.append(time.perf_counter() - start_s)
    os.close(number)
    return statistics.median(seconds) * 1e3


async def measure(folder: Path) -> dict[str, Any]:
    """Measure all figures."""
    box = KilledBox(folder, busy_ms=0)
    box.start()
    found: dict[str, Any] = {"sync_p50_ms": sync_p50_ms(folder)}
    try:
        await wait_for_models(box.url)
        async with connected(box.url) as client:

            async def submit() -> float:
                start_s = time.perf_counter()
                inputs = {"x": np.zeros(2)}
                await client.submit(IDLE_MODEL, inputs, deadline_s=3600, durable=True)
                return time.perf_counter() - start_s

            for _ in range(50):
                await submit()
            one = [await submit() for _ in range(ONE_BY_ONE)]
            found["one_by_one"] = _figures(one, sum(one))
            for many, count in IN_FLIGHT.items():
                room = asyncio.Semaphore(many)

                async def submit_in(room: asyncio.Semaphore) -> float:
                    async with room:
                        return await submit()

                start_s = time.perf_counter()
                each = await asyncio.gather(*(submit_in(room) for _ in range(count)))
                found[f"{many}_in_flight"] = _figures(each, time.perf_counter() - start_s)
        box.drain()
    finally:
        box.close()
    return found


def _figures(seconds: list[float], total_s: float) -> dict[str, float]:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    per_s = len(seconds) / total_s
    return {"p50_ms": float(p50), "p99_ms": float(p99), "acknowledged_per_s": per_s}


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description="acknowledgements of durable tasks")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laxity-acks-", dir=arguments.folder) as name:
        write_figures(asyncio.run(measure(Path(name))), arguments.json)


if __name__ == "__main__":
    main()

"""How exactly the link emulator keeps to its settings.

    python -m benchmarks.link [--seconds S] [--json FILE]

`laxity replay link` relays in its own process; client and server are in this one. The excess of a
round trip over its setting includes the two programs' own time, which is also measured with a relay
without delay and with no relay at all.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import write_figures

RTTS_MS = (0.0, 0.5, 2.0, 10.0, 50.0)
MBPS = (1, 10, 100, 1000)
BLOCK = bytes(1 << 16)
GAP_S = 0.005


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo small messages; answer long ones with their length only."""
    first = await reader.read(1 << 18)
    if len(first) <= 64:
        with contextlib.suppress(ConnectionResetError):  # a relay that ends drops the connection
            while first:
                writer.write(first)
                first = await reader.read(64)
    else:
        size = len(first)
        while data := await reader.read(1 << 18):
            size += len(data)
        writer.write(size.to_bytes(8, "big"))
    writer.close()


@contextlib.asynccontextmanager
async def relay(port: int, *options: str) -> AsyncIterator[int]:
    """Start a relay to a port of this machine; yield the port on which it listens."""
    command = [sys.executable, "-m", "scheduler.cli", "replay", "link", "--to", f"127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(
        *command, *options, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = await process.stderr.readline()
    found = re.search(rb":(\d+),", said)
    if found is None:
        raise RuntimeError(said.decode())
    try:
        yield int(found[1])
    finally:
        process.terminate()
        await process.communicate()


async def round_trips(port: int, seconds: float) -> list[float]:
    """Round-trip times, sorted, in ms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began_ns = time.monotonic_ns()
        writer.write(b"x" * 64)
        await reader.readexactly(64)
        taken.append((time.monotonic_ns() - began_ns) / 1e6)
        await asyncio.sleep(GAP_S)
    writer.close()
    return sorted(taken[1:])  # the first includes the connection setup


async def throughput(port: int, size: int) -> float:
    """The Mbit/s of one transfer, from its first byte to the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    for _ in range(size // len(BLOCK)):
        writer.write(BLOCK)
        await writer.drain()
    writer.write_eof()
    got = int.from_bytes(await reader.readexactly(8), "big")
    took = time.monotonic() - began
    writer.close()
    return got * 8e-6 / took


def beyond(taken: Sequence[float], asked_ms: float) -> dict[str, float]:
    ranks = statistics.quantiles(taken, n=100)
    return {
        "p50_ms": round(ranks[49] - asked_ms, 3),
        "p99_ms": round(ranks[98] - asked_ms, 3),
        "least_ms": round(taken[0] - asked_ms, 3),
    }


async def measure(seconds: float) -> dict[str, Any]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    figures |= {"without": beyond(await round_trips(port, seconds), 0)}
    for rtt_ms in RTTS_MS:
        async with relay(port, "--rtt-ms", str(rtt_ms)) as front:
            figures[f"rtt {rtt_ms:g} ms"] = beyond(await round_trips(front, seconds), rtt_ms)
    for mbps in MBPS:
        async with relay(port, "--mbps", str(mbps)) as front:
            size = int(mbps * seconds * 1e6 / 8)
            figures[f"{mbps} Mbit/s"] = {"mbps": round(await throughput(front, size), 3)}
    async with relay(port) as front:
        figures["no limit"] = {"mbps": round(await throughput(front, 1 << 30))}
    server.close()
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="per figure")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    write_figures(asyncio.run(measure(options.seconds)), options.json)


if __name__ == "__main__":
    main()

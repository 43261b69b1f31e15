"""How long the slowest requests take, beside an echo between two processes at the same pace.

    python -m benchmarks.tail [--rate N] [--seconds N] [--rounds N] [--json FILE]

Small requests for a no-op model are sent to a real agent at random moments (Poisson), whether or
not earlier ones are answered, each with a deadline of 20 ms. In turns with them, 8 bytes are sent
at the same pace to a process that returns them. What that takes is what the machine itself adds: it
wakes two processes, in the tail as late as it will.

The JSON file has `laxity` and `echo`, each with `p50_ms`, `p99_ms`, `p99.9_ms` and `max_ms`;
`laxity` also has the share of requests that were answered in time (`on_time_share`); `ratio` is
laxity over the echo. A request without an answer counts with the time until that was told.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.figures import print_contenders, write_figures
from benchmarks.noop import make_models
from benchmarks.overhead import SMALL, WARM_UP
from benchmarks.spawned_agent import spawned_agent
from scheduler import Client, RequestEnded

DEADLINE_MS = 20.0
_QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p99.9_ms": 0.999, "max_ms": 1.0}
_WORD = struct.Struct("<Q")

Send = Callable[[Callable[[bool], None]], None]
"""Sends a request; calls back once it has ended, with whether it was answered in time."""


def paced(send: Send, rate: float, seconds: float, seed: int) -> list[tuple[float, bool]]:
    """What each request took in milliseconds, and whether it was answered in time."""
    chance, ended, lock = random.Random(seed), threading.Semaphore(0), threading.Lock()
    took: list[tuple[float, bool]] = []
    due_s = time.monotonic()
    end_s, sent = due_s + seconds, 0
    while (due_s := due_s + chance.expovariate(rate)) < end_s:
        time.sleep(max(0.0, due_s - time.monotonic()))

        def note(in_time: bool, sent_s: float = time.monotonic()) -> None:
            with lock:
                took.append(((time.monotonic() - sent_s) * 1000, in_time))
            ended.release()

        send(note)
        sent += 1
    for _ in range(sent):
        ended.acquire()
    return took


@contextmanager
def laxity(folder: Path) -> Iterator[Send]:
    """Sends to a real agent."""
    with spawned_agent(folder, folder / "models") as url, Client(url) as client:

        def send(note: Callable[[bool], None]) -> None:
            future = client.submit("noop", {"x": SMALL}, deadline_ms=DEADLINE_MS)
            future.add_done_callback(
                lambda done: note(not isinstance(done.exception(), RequestEnded))
            )

        for _ in range(WARM_UP):
            client.infer("noop", {"x": SMALL}, deadline_ms=1000)
        yield send


def _serve(listener: socket.socket) -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            self._transport.write(data)

    loop = uvloop.new_event_loop()
    loop.run_until_complete(loop.create_unix_server(Echo, sock=listener))
    loop.run_forever()


@contextmanager
def echo(folder: Path) -> Iterator[Send]:
    """Sends 8 bytes to a process that returns them."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "echo.sock"))
        listener.listen()
        server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,))
        server.start()
    waiting: dict[int, Callable[[bool], None]] = {}

    def receive() -> None:
        while word := there.recv(_WORD.size, socket.MSG_WAITALL):
            waiting.pop(_WORD.unpack(word)[0])(True)

    with socket.socket(socket.AF_UNIX) as there:
        there.connect(str(folder / "echo.sock"))
        reader = threading.Thread(target=receive)
        reader.start()

        def send(note: Callable[[bool], None]) -> None:
            waiting[id(note)] = note
            there.sendall(_WORD.pack(id(note)))

        try:
            yield send
        finally:
            server.terminate()
            server.join()
            reader.join()


def figures(took: list[tuple[float, bool]]) -> dict[str, float]:
    """The quantiles of what requests took."""
    ordered = sorted(ms for ms, _ in took)
    return {name: ordered[int(q * (len(ordered) - 1))] for name, q in _QUANTILES.items()}


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="how long the slowest requests take")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    took: dict[str, list[tuple[float, bool]]] = {"laxity": [], "echo": []}
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        folder = Path(name)
        make_models(folder / "models")
        with echo(folder) as to_echo, laxity(folder) as to_laxity:
            for number in range(arguments.rounds):
                for who, send in (("laxity", to_laxity), ("echo", to_echo)):
                    took[who] += paced(send, arguments.rate, arguments.seconds, number)
    found = {who: figures(each) for who, each in took.items()}
    found["ratio"] = {key: found["laxity"][key] / found["echo"][key] for key in found["echo"]}
    in_time = [each for _, each in took["laxity"]]
    found["laxity"]["on_time_share"] = sum(in_time) / len(in_time)
    print_contenders(found, found["laxity"])
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

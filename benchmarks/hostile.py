"""The cost of hostile clients to a well-behaved tenant, and the memory they take.

    python -m benchmarks.hostile --json FILE [--deadline-ms 100] [--apart]

A tenant asks the HTTP door 100 times a second with a deadline, alone before each attack and then
during it. Its shares of answers in time are compared, and the doors' memory is measured. Real
attackers would be on other machines: --apart gives them the last core, and the first core to
everything else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.doors import BareHttp, binary_body
from benchmarks.figures import write_figures
from benchmarks.half_calls import HalfCalls
from benchmarks.noop import make_models
from benchmarks.overhead import SMALL
from benchmarks.ports import free_port
from benchmarks.spawned_agent import spawned_agent
from scheduler.tenants import hash_of, new_token

RATE_PER_S, SECONDS = 100, 9.0
REQUEST_S = 3.0
"""How long the doors wait for a request, short enough to end slow senders during the
measurement."""

PATH = "/v2/models/noop/infer"
GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
GOOD, GREEDY = new_token(), new_token()
GREEDY_RATE = 20

Attack = Callable[[int, threading.Event], None]


class Tenant:
    """The well-behaved tenant, with a request every 10 ms."""

    def __init__(self, port: int, deadline_ms: float) -> None:
        self._port = port
        self._deadline_ms = deadline_ms

    def share_in_time(self, seconds: float) -> tuple[float, float]:
        """The share of requests with a 200 within the deadline, and the longest time in ms."""
        good = total = 0
        longest_s = 0.0
        body, headers = binary_body(SMALL)
        timeout = f"x-request-timeout-ms: {self._deadline_ms}"
        more = (*headers, f"Authorization: Bearer {GOOD}", timeout)
        peer = BareHttp(self._port, PATH, body, *more)
        start = due = time.perf_counter()
        while due < start + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            total += 1
            try:
                asked_s = time.perf_counter()
                peer()
                took_s = time.perf_counter() - asked_s
                good += took_s <= self._deadline_ms / 1e3
                longest_s = max(longest_s, took_s)
            except RuntimeError:
                continue  # refused, and the connection stays
            except OSError:
                with contextlib.suppress(OSError):
                    peer.close()
                    peer = BareHttp(self._port, PATH, body, *more)
            finally:
                due += 1 / RATE_PER_S
        peer.close()
        return good / total, 1e3 * longest_s


def peers(port: int, count: int) -> list[socket.socket]:
    """Open up to `count` connections."""
    found = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    return found


def slowloris(port: int, stop: threading.Event) -> None:
    """500 connections that send a header byte by byte, and reconnect when ended."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nX: ".encode()
    attackers: list[socket.socket] = []
    while not stop.wait(0.5):
        fresh = peers(port, 500 - len(attackers))
        for peer in fresh:
            with contextlib.suppress(OSError):
                peer.sendall(head)
        attackers += fresh
        for peer in list(attackers):
            try:
                peer.send(b"a")
                peer.setblocking(False)
                if not peer.recv(1):
                    raise ConnectionError("ended")
                attackers.remove(peer)  # it was answered
                peer.close()
            except BlockingIOError:
                continue
            except OSError:
                attackers.remove(peer)
                peer.close()
    for peer in attackers:
        peer.close()


def idle(port: int, stop: threading.Event) -> None:
    """10,000 connections that send nothing."""
    attackers = peers(port, 10_000)
    stop.wait()
    for peer in attackers:
        peer.close()


def large_bodies(port: int, stop: threading.Event) -> None:
    """Bodies of a gigabyte, with an announced length and in chunks, with a token."""
    auth = f"Authorization: Bearer {GREEDY}"
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{auth}\r\n"
    chunk = b"40000\r\n" + bytes(0x40000) + b"\r\n"
    while not stop.is_set():
        for kind in ("Content-Length: 1000000000", "Transfer-Encoding: chunked"):
            for peer in peers(port, 1):
                with contextlib.suppress(OSError):
                    peer.sendall(f"{head}{kind}\r\n\r\n".encode())
                    for _ in range(4000):
                        peer.sendall(chunk)
                        if stop.is_set():
                            break
                peer.close()


def bombs(port: int, stop: threading.Event) -> None:
    """Small bodies that decompress to a gigabyte."""
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1000)) + packer.flush()
    headers = ("Content-Encoding: deflate", f"Authorization: Bearer {GREEDY}")
    _again(port, bomb, headers, stop)


def half_messages(port: int, stop: threading.Event) -> None:
    """300 gRPC calls, each with 60 MB of a message that never ends."""
    connections = [HalfCalls(port) for _ in range(6)]
    for connection in connections:
        for _ in range(50):
            connection.call(GRPC_PATH, 60_000_000, authorization=f"Bearer {GREEDY}")
    while not stop.is_set():
        for connection in connections:
            connection.pump(0.1)


def guesses(port: int, stop: threading.Event) -> None:
    """Guess tokens as fast as they are refused."""
    number = 0
    while not stop.is_set():
        number += 1
        _again(port, b"{}", (f"Authorization: Bearer guess-{number:020}",), stop, once=True)


def beyond_quota(port: int, stop: threading.Event) -> None:
    """A tenant at 100 times its rate limit."""
    body, headers = binary_body(SMALL)
    more = (*headers, f"Authorization: Bearer {GREEDY}")
    end = time.perf_counter()
    peer = BareHttp(port, PATH, body, *more)
    while not stop.is_set():
        with contextlib.suppress(RuntimeError):
            peer()
        end += 1 / (100 * GREEDY_RATE)
        time.sleep(max(0.0, end - time.perf_counter()))
    peer.close()


def _again(
    port: int, body: bytes, headers: tuple[str, ...], stop: threading.Event, once: bool = False
) -> None:
    while not stop.is_set():
        with contextlib.suppress(RuntimeError, OSError):
            peer = BareHttp(port, PATH, body, *headers)
            with contextlib.suppress(RuntimeError):
                peer()
            peer.close()
        if once:
            return


ATTACKS: dict[str, Attack] = {
    "slowloris": slowloris,
    "10,000 idle connections": idle,
    "1 GB bodies": large_bodies,
    "zip bombs": bombs,
    "60 MB halves over gRPC": half_messages,
    "token guesser": guesses,
    "100x quota": beyond_quota,
}


@contextlib.contextmanager
def attacked(attack: Attack, port: int, core: int | None) -> Iterator[None]:
    """Attack from another process, so that the measuring process is not slowed."""
    child = os.fork()
    if not child:
        os.nice(10)  # a real attacker would be on another machine
        if core is not None:
            os.sched_setaffinity(0, {core})
        stop = threading.Event()
        threading.Thread(target=_end_with_parent, args=(os.getppid(), stop), daemon=True).start()
        attack(port, stop)
        os._exit(0)
    try:
        time.sleep(2)
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def _end_with_parent(parent: int, stop: threading.Event) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    stop.set()


def door_memory_mb(kind: str) -> float:
    """The resident memory of a door's process, in 10^6 bytes."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "scheduler.ingress.process" in line and f"{kind}-0" in line[-1] and _is_ours(process):
            return process.memory_info().rss / 1e6
    raise RuntimeError(f"there is no {kind} door")


def _is_ours(process: psutil.Process) -> bool:
    return any(parent.pid == os.getpid() for parent in process.parents())


def write_tenants(path: Path) -> None:
    """Write the good and the greedy tenant."""
    path.touch(0o600)
    greedy = {"name": "greedy", "tokens": [hash_of(GREEDY)], "queue_share": 0.25}
    tenants: list[dict[str, Any]] = [
        {"name": "good", "tokens": [hash_of(GOOD)]},
        {**greedy, "rate_per_s": GREEDY_RATE, "burst": 10},
    ]
    path.write_text(json.dumps({"tenants": tenants}))


def measure(folder: Path, deadline_ms: float, core: int | None) -> dict[str, Any]:
    """Measure the share in time and the doors' memory, before and under each attack."""
    make_models(folder / "models")
    write_tenants(folder / "tenants.yaml")
    web, rpc = free_port(), free_port()
    found: dict[str, Any] = {}
    os.environ["LAXITY_TOKEN"] = GOOD
    with spawned_agent(
        folder,
        folder / "models",
        listen={"http": f"127.0.0.1:{web}", "grpc": f"127.0.0.1:{rpc}"},
        doors={"request_s": REQUEST_S},
        tenants_file=str(folder / "tenants.yaml"),
    ):
        tenant = Tenant(web, deadline_ms)
        tenant.share_in_time(2)
        for name, attack in ATTACKS.items():
            kind, port = ("grpc", rpc) if attack is half_messages else ("http", web)
            before, longest_before_ms = tenant.share_in_time(SECONDS)
            with attacked(attack, port, core):
                during, longest_ms = tenant.share_in_time(SECONDS)
                memory_mb = door_memory_mb(kind)
            found[name] = {
                "before": before,
                "during": during,
                "points": 100 * (before - during),
                "longest_before_ms": longest_before_ms,
                "longest_ms": longest_ms,
                "door_mb": memory_mb,
            }
            shares = f"{name:26}{before:10.4f}{during:10.4f}"
            print(f"{shares}{longest_ms:8.1f} ms{memory_mb:10.1f} MB", flush=True)
    return found


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description="the cost of hostile clients to others")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--deadline-ms", type=float, default=100.0, help="the tenant's budget")
    parser.add_argument("--apart", action="store_true", help="give the attackers their own core")
    arguments = parser.parse_args()
    core = None
    if arguments.apart:
        first, *_, core = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {first})
    header = f"{'share in time':26}{'before':>10}{'during':>10}{'longest':>11}{'door':>13}"
    print(header, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        found = measure(Path(name), arguments.deadline_ms, core)
    if arguments.json:
        write_figures({"deadline_ms": arguments.deadline_ms, **found}, arguments.json)


if __name__ == "__main__":
    main()

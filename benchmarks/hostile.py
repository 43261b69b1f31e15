"""What hostile clients cost a well-behaved tenant, and how much memory they take.

    python -m benchmarks.hostile --json FILE

A tenant asks the HTTP door 100 times a second with a deadline, first alone and then during each
attack in turn; its share of answers in time is compared, and the door's memory is watched.
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

from benchmarks.doors import SMALL, BareHttp, binary_body, free_port
from benchmarks.figures import write_figures
from benchmarks.noop import make_models
from benchmarks.spawned_agent import spawned_agent
from scheduler.tenants import hash_of, new_token

RATE_PER_S, DEADLINE_MS, SECONDS = 100, 500, 6.0
PATH = "/v2/models/noop/infer"
GOOD, GREEDY = new_token(), new_token()
GREEDY_RATE = 20

Attack = Callable[[int, threading.Event], None]


class Tenant:
    """The well-behaved one: a request every 10 ms on two connections."""

    def __init__(self, port: int) -> None:
        self._port = port

    def share_in_time(self, seconds: float) -> float:
        """The part of its requests that were answered with 200 within the deadline."""
        good = total = 0
        body, headers = binary_body(SMALL)
        more = (*headers, f"Authorization: Bearer {GOOD}", f"x-request-timeout-ms: {DEADLINE_MS}")
        peer = BareHttp(self._port, PATH, body, *more)
        start = due = time.perf_counter()
        while due < start + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            asked = max(due, time.perf_counter())
            total += 1
            try:
                peer()
                good += time.perf_counter() - asked <= DEADLINE_MS / 1e3
            except RuntimeError:
                continue  # refused, and the connection stays
            except OSError:
                with contextlib.suppress(OSError):
                    peer.close()
                    peer = BareHttp(self._port, PATH, body, *more)
            finally:
                due += 1 / RATE_PER_S
        peer.close()
        return good / total


def peers(port: int, count: int) -> list[socket.socket]:
    """Open connections, as many as can be had."""
    found = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    return found


def slowloris(port: int, stop: threading.Event) -> None:
    """500 connections that send a header a byte at a time."""
    attackers: list[socket.socket] = []
    while not stop.wait(0.5):
        attackers += peers(port, 500 - len(attackers))
        for peer in list(attackers):
            try:
                peer.send(b"P" if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 else b"")
            except OSError:
                attackers.remove(peer)
    for peer in attackers:
        peer.close()


def idle(port: int, stop: threading.Event) -> None:
    """10,000 connections that say nothing."""
    attackers = peers(port, 10_000)
    stop.wait()
    for peer in attackers:
        peer.close()


def large_bodies(port: int, stop: threading.Event) -> None:
    """Bodies of a gigabyte, announced and in chunks, with a token."""
    auth = f"Authorization: Bearer {GREEDY}"
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\n{auth}\r\n"
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
    """Small bodies that become a gigabyte."""
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1000)) + packer.flush()
    headers = ("Content-Encoding: deflate", f"Authorization: Bearer {GREEDY}")
    _again(port, bomb, headers, stop)


def guesses(port: int, stop: threading.Event) -> None:
    """Wrong tokens, as fast as they are refused."""
    number = 0
    while not stop.is_set():
        number += 1
        _again(port, b"{}", (f"Authorization: Bearer guess-{number:020}",), stop, once=True)


def beyond_quota(port: int, stop: threading.Event) -> None:
    """A tenant at 100 times its rate."""
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
    "token guesser": guesses,
    "100x quota": beyond_quota,
}


@contextlib.contextmanager
def attacked(attack: Attack, port: int) -> Iterator[None]:
    """An attack from a process of its own, so that it does not slow the one who measures."""
    child = os.fork()
    if not child:
        os.nice(10)  # it would be on another machine
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


def door_memory_mb() -> float:
    """What the HTTP door's process holds, in 10^6 bytes."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "scheduler.ingress.process" in line and "http-0" in line[-1] and _is_ours(process):
            return process.memory_info().rss / 1e6
    raise RuntimeError("there is no HTTP door")


def _is_ours(process: psutil.Process) -> bool:
    return any(parent.pid == os.getpid() for parent in process.parents())


def write_tenants(path: Path) -> None:
    """The good one and the greedy one."""
    path.touch(0o600)
    greedy = {"name": "greedy", "tokens": [hash_of(GREEDY)], "queue_share": 0.25}
    tenants: list[dict[str, Any]] = [
        {"name": "good", "tokens": [hash_of(GOOD)]},
        {**greedy, "rate_per_s": GREEDY_RATE, "burst": 10},
    ]
    path.write_text(json.dumps({"tenants": tenants}))


def measure(folder: Path) -> dict[str, Any]:
    """The share in time and the door's memory, alone and under each attack."""
    make_models(folder / "models")
    write_tenants(folder / "tenants.yaml")
    port = free_port()
    found: dict[str, Any] = {}
    os.environ["LAXITY_TOKEN"] = GOOD
    with spawned_agent(
        folder,
        folder / "models",
        listen={"native": f"unix://{folder}/bench.sock", "http": f"127.0.0.1:{port}"},
        tenants_file=str(folder / "tenants.yaml"),
    ):
        tenant = Tenant(port)
        tenant.share_in_time(2)
        for name, attack in ATTACKS.items():
            before = tenant.share_in_time(SECONDS)
            with attacked(attack, port):
                during = tenant.share_in_time(SECONDS)
                memory_mb = door_memory_mb()
            found[name] = {
                "before": before,
                "during": during,
                "points": 100 * (before - during),
                "door_mb": memory_mb,
            }
            print(f"{name:26}{before:10.4f}{during:10.4f}{memory_mb:10.1f} MB", flush=True)
    return found


def main() -> None:
    """Measures, prints a table and writes the file."""
    parser = argparse.ArgumentParser(description="what hostile clients cost the others")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    print(f"{'share in time':26}{'before':>10}{'during':>10}{'door':>10}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="laxity-bench-") as name:
        found = measure(Path(name))
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()

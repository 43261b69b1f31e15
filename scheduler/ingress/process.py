"""A door in a process of its own: `python -m scheduler.ingress.process SPEC`.

The agent starts the door, passes it its listening sockets, and holds the other end of its standard
input: when that closes, the agent is gone, and the door exits. The door prints the addresses on
which it listens to standard output. SIGTERM drains it; SIGHUP makes it read tokens and certificates
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import structlog
import uvloop

from scheduler.config.box import Config
from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError
from scheduler.daemon.asyncio_tasks import start_task
from scheduler.daemon.logs import set_up_logging
from scheduler.errors import Unavailable
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.ingress.secret_files import LastGood
from scheduler.tenants import Access, load_access

log = structlog.get_logger()

Kind = Literal["http", "grpc"]


@dataclass(frozen=True, slots=True)
class DoorSpec:
    """What the agent tells a door.

    Attributes:
        kind: The door's protocol.
        config: The box's configuration, as JSON.
        scheduler: Path of the scheduler's socket for doors.
        memory: Folder of the registry of shared-memory regions.
        cores: CPU cores to run on (for gRPC, Python's threads only); empty leaves the choice to
            the system.
        sockets: Descriptors of inherited listening sockets, with the address of each.
        addresses: Addresses that the door binds itself, beside other doors of its kind.
    """

    kind: Kind
    config: dict[str, Any]
    scheduler: str
    memory: str
    cores: list[int]
    sockets: list[tuple[int, str]]
    addresses: list[str]

    def write(self, path: Path) -> None:
        """Writes the spec to a file for the door to read."""
        path.touch(0o600)
        path.write_text(json.dumps(asdict(self)))


class Door(Protocol):
    """A server of one protocol."""

    async def open(self) -> None:
        """Starts to listen."""

    def reload(self, access: Access, tls: TlsConfig | None) -> None:
        """Applies new access rules, and reads certificates again."""

    async def drain(self, seconds: float) -> None:
        """Starts nothing new, and waits for calls in flight, at most so many seconds."""


def main() -> None:
    """Runs a door until it is told to stop."""
    try:
        spec = DoorSpec(**json.loads(Path(sys.argv[1]).read_text()))
    except FileNotFoundError:  # the agent that started it has ended meanwhile, or starts over
        sys.exit(1)
    config = Config.model_validate(spec.config)
    set_up_logging(config.log)
    if spec.kind == "http":
        _keep_to(spec.cores)
    os.umask(0o077)
    os.nice(config.doors.niceness)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_serve(spec, config))


async def _serve(spec: DoorSpec, config: Config) -> None:
    loop = asyncio.get_running_loop()
    stop, reload_ = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the agent gets it too, and stops us
    loop.add_signal_handler(signal.SIGHUP, reload_.set)
    loop.add_reader(sys.stdin.fileno(), _agent_gone)
    doors = config.doors
    service = Service(
        Box(f"unix://{spec.scheduler}"),
        SharedMemory(Path(spec.memory) if doors.shared_memory else None),
        Defaults.of(doors, config.limits),
        doors.compat,
        doors.items,
        config.log.level,
        config.limits.body_mb * 10**6,
    )
    usable = _usable(config)
    try:
        door = _door(spec, usable, service, load_access(usable.token_file, usable.tenants_file))
        await door.open()
    except (ConfigError, OSError) as error:  # such as a token that is just being replaced
        log.error("a door can't open", door=spec.kind, error=str(error))
        sys.exit(1)
    if spec.kind == "grpc":
        _keep_to(spec.cores)
    print(json.dumps({"listening": spec.addresses}), flush=True)
    with contextlib.suppress(Unavailable):  # the first request asks again
        await service.box.snapshot()
    gc.collect()
    gc.freeze()
    reloading = start_task(_reload(door, config, reload_), "the reload of tokens")
    await stop.wait()
    reloading.cancel()
    service.draining = True
    await door.drain(config.drain_s)
    service.box.close()


def _keep_to(cores: Sequence[int]) -> None:
    """Pins Python's threads to some cores.

    gRPC's library wakes one Python thread, which wakes the event loop's thread. On one core the two
    take turns without an interrupt to another core and without waiting for the interpreter's lock.
    The library's other threads are not pinned.
    """
    if not cores:
        return
    for thread in threading.enumerate():
        if thread.native_id is not None:
            with contextlib.suppress(OSError):  # this process may no longer use the core
                os.sched_setaffinity(thread.native_id, cores)


def _door(spec: DoorSpec, config: Config, service: Service, access: Access) -> Door:
    if spec.kind == "http":
        from scheduler.ingress.http.server import HttpServer

        inherited = [(socket.socket(fileno=number), text) for number, text in spec.sockets]
        return HttpServer(service, config, access, inherited)
    from scheduler.ingress.grpc.server import GrpcServer

    return GrpcServer(service, config, access, spec.addresses)


async def _reload(door: Door, config: Config, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        try:
            try:
                # In another thread: a long file takes a while.
                access, tls = await asyncio.to_thread(_read, config)
            except RuntimeError:  # none can be started, and a revoked token must not stay
                access, tls = _read(config)
            door.reload(access, tls)
        except (ConfigError, OSError) as error:
            log.error("tokens and certificates not applied", error=str(error))


def _read(config: Config) -> tuple[Access, TlsConfig | None]:
    usable = _usable(config)
    return load_access(usable.token_file, usable.tenants_file), usable.tls


def _usable(config: Config) -> Config:
    """The configuration, with the last usable content of a door's files that are broken."""
    own = config.model_copy(update={"cloud": (), "neighbours": None})
    usable, broken = LastGood(config.state_dir).usable(own)
    for name, problem in broken:
        log.error(f"{name} not applied", error=str(problem))
    return usable


def _agent_gone() -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        os._exit(1)


if __name__ == "__main__":
    main()

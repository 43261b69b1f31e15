"""The Ray actor that is a box's scheduler: the core's driver and the doors, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
import structlog
import uvloop

from scheduler.address import Address, no_listening
from scheduler.config.box import Config
from scheduler.config.problems import ConfigError
from scheduler.core.limits import Limits
from scheduler.daemon import pulse
from scheduler.daemon.driver import Driver
from scheduler.daemon.logs import set_up_logging
from scheduler.daemon.parts import (
    add_clouds,
    neighbours_of,
    open_cache,
    open_journal,
    open_tasks,
    open_traces,
    shared_bodies,
)
from scheduler.daemon.reloading import LiveConfig
from scheduler.ingress.certificates import HANDSHAKE_S, DoorContext
from scheduler.ingress.direct import DirectDoor
from scheduler.ingress.model_shelf import ModelShelf
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.taken_files import Read, TakenFiles
from scheduler.ingress.unix_door import UnixDoor
from scheduler.policy_loading import FALLBACK, NamedPolicy
from scheduler.result import Result
from scheduler.sockets import listener_for_both, takes_ipv4
from scheduler.tenants import load_access
from scheduler.wire import FrameLimits
from workers.starting_again import is_brought_back, tried_again

T = TypeVar("T")

log = structlog.get_logger()

_CALLERS = "callers"
"""Concurrency group of `infer`, whose own threads let the agent's calls through under load."""

_GC_THRESHOLD = 50_000
"""Cyclic garbage is collected rarely: the hot path makes none, and each collection is a pause."""

_WORKERS_S = 5.0
"""How long a scheduler waits for its workers to describe their models before it opens its doors."""

_COPYING_S = 1.0
"""How long clients on this machine may take to copy the last results before their connections are
closed."""

LISTENING = "listening.json"
"""File beside the doors' socket: the addresses of all doors of the box, written by the agent."""


class SchedulerProcess:
    """A driver and its doors, on an event loop in its own thread.

    Args:
        config: The box's configuration.
        config_file: The file that `reload` reads again; None if there is none.
        over: Settings that override the file, as in `load_config`.
        links: The unix socket of each device's worker.
        cores: The CPU cores to run on; empty leaves the choice to the system.
        door_socket: The socket for doors that run in processes of their own. The file `LISTENING`
            beside it may hold the addresses of all doors.
    """

    @tried_again("the scheduler", OSError, ConfigError)
    def __init__(
        self,
        config: Config,
        config_file: Path | None,
        over: Mapping[str, Any],
        links: Mapping[str, Path],
        cores: tuple[int, ...],
        door_socket: Path,
    ) -> None:
        """Opens the doors; returns once they are open.

        Raises:
            OSError: A door's address can't be bound.
            ConfigError: The tokens can't be read, or the policy can't be loaded.
        """
        set_up_logging(config.log)
        if is_brought_back():
            log.warning("the scheduler had ended and was started again; it counts from 0")
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cores)
        self._live = LiveConfig(config, config_file, over, door_socket.parent)
        self._files = TakenFiles(self._live.config, copies=config_file is not None)
        self._listening_file = door_socket.with_name(LISTENING)
        self._addresses: list[str] = []
        self._all_addresses: list[str] = []
        self._started = time.monotonic()
        self._version = metadata.version("laxity")  # on disk there may be another one later
        self._loop = uvloop.new_event_loop()
        looping = threading.Thread(target=self._loop.run_forever, name="laxity-loop", daemon=True)
        looping.start()
        self._wait(self._open(self._files.usable(), links, door_socket))
        threading.Thread(target=self._files.keep, name="last good", daemon=True).start()
        self._live.watch(self._driver, self._loop)
        watched = self._loop, looping.ident, self._driver, self._end_for_policy
        threading.Thread(target=pulse.watch, args=watched, name="pulse", daemon=True).start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)

    def addresses(self) -> list[str]:
        """The addresses of the native doors."""
        return self._addresses

    def status(self) -> dict[str, Any]:
        """The state of the box; every door answers `status` with it."""
        return self._wait(self._status())

    def models(self) -> dict[str, Any]:
        """The models that the box can run; every door answers `models` with it."""
        return self._wait(self._models())

    def give_up(self, device_id: str, reason: str) -> None:
        """Notes in the status why a device can't be used; its worker may still connect later."""
        said = self._driver.on_progress, device_id, 0, 0, f"not used: {reason}"
        self._loop.call_soon_threadsafe(*said)

    def reload(self) -> None:
        """Applies those changes of the configuration file that need no restart.

        Tokens and certificates are applied before this returns. The policy is loaded in another
        thread, in the background, because its imports may take seconds.
        """
        self._wait(self._take_files(self._files.read(self._tls)))
        self._files.keep()
        self._live.read_again()

    @ray.method(max_task_retries=0)
    def drain(self, seconds: float) -> int:
        """Stops admission and waits for held requests; returns how many had to be cancelled.

        If this process ends meanwhile, the call fails: the next process holds none of the requests.
        """
        return self._wait(self._drain(seconds))

    @ray.method(concurrency_group=_CALLERS)
    def infer(
        self, model: str, inputs: Mapping[str, Any], deadline_ms: float, **options: Any
    ) -> Result:
        """Runs one inference for code inside the cluster: `scheduler.infer.remote(...)`.

        The deadline counts from the arrival of the call. The options `variant`, `priority`,
        `weight`, `accept_late` and `exact` and the errors are those of `scheduler.Client.infer`;
        Ray wraps an error in its own, with the original as its cause.
        """
        return self._direct.infer(model, inputs, deadline_ms, **options)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    async def _open(self, config: Config, links: Mapping[str, Path], door_socket: Path) -> None:
        limits = config.limits
        first, lacking = self._live.first_policy()
        policy = FALLBACK if lacking else NamedPolicy(config.policy.name, config.policy.options)
        held = Limits(limits.queue_requests, limits.queue_mb * 10**6, classes=limits.queue_shapes)
        self._journal = open_journal(config, policy, held)
        price = config.energy.cost_per_kwh
        self._driver = Driver(
            policy,
            held,
            journal=self._journal,
            cost_per_kwh=price,
            first=first,
            shared=shared_bodies(held, limits.connections),
        )
        self._driver.fell_back = lacking
        self._driver.on_broken = self._end_for_policy
        rules = DoorRules(
            site=config.site,
            access=load_access(config.token_file, config.tenants_file),
            frames=FrameLimits(limits.header_kb * 1000, limits.body_mb * 10**6),
            connections=limits.connections,
            max_budget_ns=int(limits.max_budget_s * 1e9),
        )
        self._cache = open_cache(config, self._driver)
        self._door = NativeDoor(self._driver, rules, self._describe, self._cache)
        self._door.admission.traces = open_traces(config)
        self._door.tasks = open_tasks(config, self._driver, self._door.admission)
        self._door.shelf = ModelShelf(config.models)
        self._direct = DirectDoor(self._loop, self._door)
        for device_id, path in links.items():
            self._driver.add_device(device_id, path)
        add_clouds(config, self._driver)
        # Clients that wait for the box submit what they have as soon as a door opens.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._driver.catalog.heard(links), _WORKERS_S)
        self._tls = DoorContext(config.tls) if config.tls is not None else None
        self._door.tls = self._tls
        self._servers = [await self._listen(address) for address in config.listen.native]
        self._addresses = [
            _bound(address, server)
            for address, server in zip(config.listen.native, self._servers, strict=True)
        ]
        self._servers.append(await UnixDoor(self._door.for_doors, str(door_socket)).open())
        is_loaded = self._door.admission.is_loaded
        neighbours = neighbours_of(config, self._driver, self._addresses, is_loaded)
        if neighbours is not None:
            self._door.neighbours = neighbours
            neighbours.start()

    async def _listen(self, address: Address) -> asyncio.AbstractServer | UnixDoor:
        if address.path is None:
            tls = self._tls if address.scheme == "tls" else None
            patience_s = HANDSHAKE_S if tls is not None else None
            port = address.port or 0
            where: dict[str, Any] = {"host": address.host, "port": port}
            try:
                if takes_ipv4(address, self._live.config.listen.all):
                    where = {"sock": listener_for_both(port)}
                return await self._loop.create_server(
                    self._door, **where, ssl=tls, ssl_handshake_timeout=patience_s
                )
            except OSError as error:
                raise no_listening(address, error) from None
        return await UnixDoor(self._door, address.path).open()

    async def _take_files(self, read: Read) -> None:
        self._files.take(read, self._door)

    def _end_for_policy(self, why: str) -> None:
        """Ends the process, whose loop hangs or whose state is broken; Ray starts the next.

        The next one runs without the policy, and clients resubmit their requests.
        """
        self._live.note_hung(self._driver, why)
        os._exit(1)

    async def _status(self) -> dict[str, Any]:
        return self._describe()

    async def _models(self) -> dict[str, Any]:
        return self._door.admission.describe_models()

    def _certificate(self) -> dict[str, Any] | None:
        """The certificate of the doors, and when it expires; None without TLS."""
        tls = self._live.config.tls
        if self._tls is None or tls is None:
            return None
        return {"file": str(tls.cert), "expires_unix_s": self._tls.expires_unix_s}

    def _listening(self) -> list[str]:
        """The addresses of all doors; only this process's own until the agent has opened all."""
        if not self._all_addresses:
            with contextlib.suppress(OSError, ValueError):
                self._all_addresses = json.loads(self._listening_file.read_text())
        return self._all_addresses or self._addresses

    def _describe(self) -> dict[str, Any]:
        neighbours, tasks = self._door.neighbours, self._door.tasks
        traces = self._door.admission.traces
        return {
            "site": self._live.config.site,
            "version": self._version,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "draining": self._door.closing,
            "not_taken_over": [
                *self._live.not_taken,
                *self._files.not_taken,
                *self._live.not_taken_yet(),
            ],
            "certificate": self._certificate(),
            "listening": self._listening(),
            "reading_bytes": self._door.reading.count,
            "ray_address": ray.get_runtime_context().gcs_address,
            "tenants": self._door.admission.quotas.held(),
            "journal": self._journal.status() if self._journal is not None else None,
            "cache": self._cache.status() if self._cache is not None else None,
            "durable": tasks.desk.status() if tasks is not None else None,
            "tracing": traces.describe() if traces is not None else None,
            "neighbours": neighbours.describe() if neighbours is not None else None,
            **self._driver.status(),
        }

    async def _drain(self, seconds: float) -> int:
        end_s = time.monotonic() + seconds
        for server in self._servers:
            server.close()
        neighbours, tasks = self._door.neighbours, self._door.tasks
        if neighbours is not None:
            neighbours.leave()
        self._door.stop_admitting()
        if self._cache is not None:
            self._cache.settle()
        if tasks is not None:
            tasks.desk.stop()
        left = await self._driver.drain(seconds)
        if tasks is not None:
            await tasks.desk.close()
        await self._door.wait_copied(min(_COPYING_S, end_s - time.monotonic()))
        self._door.close()
        # A large answer takes a while on a slow link, and would be lost if the process ended.
        await self._door.wait_closed(end_s - time.monotonic())
        if neighbours is not None:
            await neighbours.close()
        await self._driver.close()
        if self._door.admission.traces is not None:
            await self._door.admission.traces.close(end_s - time.monotonic())
        if self._cache is not None:
            await self._cache.close()
        if self._journal is not None:
            self._journal.close()
        return left


def _bound(address: Address, server: asyncio.AbstractServer | UnixDoor) -> str:
    """The address, with the port that the system chose where none was given."""
    if address.path is not None:
        return str(address)
    port = cast(asyncio.Server, server).sockets[0].getsockname()[1]
    return str(Address(address.scheme, host=address.host, port=port))


SchedulerActor = cast(Any, ray.remote)(
    num_cpus=0,
    max_restarts=-1,
    max_task_retries=-1,
    max_concurrency=4,
    concurrency_groups={_CALLERS: 64},
)(SchedulerProcess)

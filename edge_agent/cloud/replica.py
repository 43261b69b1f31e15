"""A replica: the scheduler and workers of a box on Ray Serve's node, behind Ray Serve's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import ray
import structlog
from ray import serve
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from starlette.requests import Request
from starlette.responses import Response

from edge_agent.cloud.config import ApplicationConfig, CloudDevice
from edge_agent.errors import AgentError
from edge_agent.readiness import Readiness
from edge_agent.run_dir import make_run_dir
from edge_agent.watching import FileWatch
from edge_agent.worker_arguments import worker_arguments
from scheduler.address import Address
from scheduler.config.box import ConfigError
from scheduler.daemon.actor import SchedulerActor
from scheduler.daemon.logs import set_up_logging
from scheduler.ingress.http.embedded import EmbeddedDoor
from scheduler.ingress.http.server import http_limits
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import load_access
from workers.actor import WorkerProcess
from workers.runtimes.base import DeviceSpec

NAMESPACE = "laxity-cloud"
"""Of the replicas' schedulers, by whose names `laxity cloud status` finds them."""

log = structlog.get_logger()


def scheduler_name(application: str, replica: str) -> str:
    """What a replica's scheduler is called in Ray."""
    return f"{application}/{replica}"


class Replica:
    """What Ray Serve starts, stops and gives requests to.

    Args:
        config: The application's.

    Raises:
        AgentError: None of its devices can be used.
        ConfigError: The tokens can't be read.
    """

    def __init__(self, config: ApplicationConfig) -> None:
        """Starts everything; returns once the models are ready."""
        set_up_logging(config.log)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir = make_run_dir()
        self._ending = threading.Event()
        # From here on they are read.
        files = [file for file in (config.token_file, config.tenants_file) if file is not None]
        watch = FileWatch(files)
        with _one_at_a_time(config.state_dir):
            self._start(config)
            Readiness(self._scheduler, self._workers).wait()
        self._box = Box(f"unix://{self._run_dir / 'doors.sock'}")
        self._door = self._open(config)
        if files:
            loop = asyncio.get_running_loop()
            changed = partial(loop.call_soon_threadsafe, self._reload, config)
            watching = threading.Thread(target=watch.run, args=(changed, self._ending), daemon=True)
            watching.start()

    def _start(self, config: ApplicationConfig) -> None:
        own = config.of_replica(self._run_dir / "native.sock")
        group = ray.util.get_current_placement_group()
        links = {d.id: self._run_dir / f"{d.id.replace(':', '-')}.sock" for d in config.devices}
        self._workers = {
            device.id: CloudWorker.options(
                num_cpus=device.cpus,
                num_gpus=device.gpus,
                scheduling_strategy=_place(group, index),
            ).remote(*worker_arguments(own, with_threads(device), links[device.id]))
            for index, device in enumerate(config.devices, start=1)
        }
        context = serve.get_replica_context()
        self._scheduler = SchedulerActor.options(
            name=scheduler_name(context.app_name, context.replica_tag),
            namespace=NAMESPACE,
            scheduling_strategy=_place(group, 0),
        ).remote(own, None, {}, links, (), self._run_dir / "doors.sock")

    def _open(self, config: ApplicationConfig) -> EmbeddedDoor:
        doors = config.doors
        limits = http_limits(config.of_replica(self._run_dir / "native.sock"))
        service = Service(
            self._box,
            SharedMemory(None),
            Defaults.of(doors, config.limits),
            doors.compat,
            doors.items,
            config.log.level,
            limits.body_bytes,
            no_orders="an order would reach one replica of several; change the configuration",
        )
        return EmbeddedDoor(service, limits, load_access(config.token_file, config.tenants_file))

    def _reload(self, config: ApplicationConfig) -> None:
        """Reads tokens again, when their files have changed."""
        try:
            self._door.reload(load_access(config.token_file, config.tenants_file))
        except ConfigError as error:
            log.error("tokens not taken over", error=str(error))
            return
        self._scheduler.reload.remote()  # one that dies reads them when it is back

    async def __call__(self, request: Request) -> Response:
        """Answers one request of the proxy."""
        scope = request.scope
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        host, port = scope.get("server") or ("", 0)
        answer = await self._door.answer(
            request.method,
            path.decode("latin-1"),
            request.headers.items(),
            request.stream(),
            is_local=Address("tcp", host=host, port=port).is_local,
        )
        headers = dict(answer.headers)
        return Response(b"".join(answer.body), answer.status, headers, answer.content_type)

    async def check_health(self) -> None:
        """Ray Serve asks now and then, and replaces a replica that raises.

        Raises:
            Unavailable: The scheduler does not answer.
        """
        await self._box.snapshot()

    def __del__(self) -> None:
        """Ray Serve ends it, once its requests have ended or had `drain_s`.

        Its actors end with its process; a process that dies without this leaves its folder to the
        next `make_run_dir`.
        """
        self._ending.set()
        shutil.rmtree(self._run_dir, ignore_errors=True)


def with_threads(device: CloudDevice) -> CloudDevice:
    """A device whose runtimes have as many threads as it has CPUs, where nothing else is said.

    Replicas come and go, and share nodes: their devices can't be given cores of their own.
    """
    told = device.cores or "threads" in device.options or "emulated" in device.runtimes
    if device.kind != "cpu" or told:
        return device
    options = {**device.options, "threads": max(1, int(device.cpus))}
    return device.model_copy(update={"options": options})


def _place(group: PlacementGroup | None, bundle: int) -> Any:
    if group is None:
        raise AgentError("a replica's processes must be on one node: deploy it by `application`")
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)


@contextlib.contextmanager
def _one_at_a_time(state_dir: Path) -> Iterator[None]:
    """Has replicas get ready one after the other: the first one measures, the others read that.

    Measured side by side on one node they would spoil each other's figures; and attempts that
    are under way in several processes would look like crashes to `CrashGuard`.
    """
    lock = os.open(state_dir / "replicas.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class CloudWorkerProcess(WorkerProcess):
    """A device's worker on the GPU that Ray chose for it."""

    def __init__(self, spec: DeviceSpec, *arguments: Any) -> None:
        """Starts serving at once; `WorkerProcess` has the arguments."""
        chosen = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if spec.kind == "gpu" and chosen and "emulated" not in spec.runtimes:
            gpu = int(chosen[0]) if chosen[0].isdecimal() else chosen[0]
            spec = replace(spec, options={"cuda": gpu, **spec.options})
        super().__init__(spec, *arguments)


CloudWorker = cast(Any, ray.remote)(max_restarts=-1, max_task_retries=-1)(CloudWorkerProcess)

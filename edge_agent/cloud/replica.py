"""A replica: a scheduler and workers like a box's, on one node, behind Ray Serve's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import ray
import structlog
from ray import serve
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from starlette.requests import Request
from starlette.responses import Response

from edge_agent.cloud.config import ApplicationConfig, CloudDevice
from edge_agent.errors import AgentError
from edge_agent.readiness import Readiness
from edge_agent.run_dir import make_run_dir
from edge_agent.state_lock import open_lock
from edge_agent.watching import FileWatch
from edge_agent.worker_arguments import link_paths, worker_arguments
from scheduler.address import Address
from scheduler.config.problems import ConfigError
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
"""The Ray namespace of the replicas' schedulers, where `laxity cloud status` finds them by name."""

log = structlog.get_logger()


class Replica:
    """The class whose instances Ray Serve starts, stops and sends requests to.

    Args:
        config: The application's configuration.

    Raises:
        AgentError: None of its devices can be used.
        ConfigError: The tokens can't be read.
    """

    def __init__(self, config: ApplicationConfig) -> None:
        """Start everything; return once the models are ready."""
        set_up_logging(config.log)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir = make_run_dir()
        self._ending = threading.Event()
        # Watched before they are read, so that no change is missed.
        files = [file for file in (config.token_file, config.tenants_file) if file is not None]
        watch = FileWatch(files)
        with _one_at_a_time(config.state_dir):
            self._start(config)
            Readiness(self._scheduler, self._workers).wait()
        self._box = Box(f"unix://{self._run_dir / 'doors.sock'}")
        self._door = self._open(config)
        if files:
            loop = asyncio.get_running_loop()

            def changed() -> None:
                asyncio.run_coroutine_threadsafe(self._reload(config), loop).result()

            watching = threading.Thread(target=watch.run, args=(changed, self._ending), daemon=True)
            watching.start()

    def _start(self, config: ApplicationConfig) -> None:
        own = config.of_replica(self._run_dir / "native.sock")
        group = ray.util.get_current_placement_group()
        links = link_paths(config.devices, self._run_dir)
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
            name=f"{context.app_name}/{context.replica_tag}",
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
        access = load_access(config.token_file, config.tenants_file)
        return EmbeddedDoor(service, limits, access, doors.host_names)

    async def _reload(self, config: ApplicationConfig) -> None:
        """Read the tokens again after their files have changed.

        The scheduler comes first: it refuses a tenant of the door's that it does not know.
        """
        with contextlib.suppress(RayError):  # one that died reads them when it restarts
            await self._scheduler.reload.remote()
        try:
            self._door.reload(load_access(config.token_file, config.tenants_file))
        except ConfigError as error:
            log.error("tokens not applied", error=str(error))

    async def __call__(self, request: Request) -> Response:
        """Answer one request from the proxy."""
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
        """Raise if the replica is broken; Ray Serve calls this periodically, and then replaces it.

        Raises:
            Unavailable: The scheduler does not answer.
        """
        await self._box.snapshot()

    def __del__(self) -> None:
        """Clean up; Ray Serve calls this once the requests have ended or had `drain_s`.

        The actors end with this process. If the process dies without this call, the next
        `make_run_dir` removes its folder.
        """
        self._ending.set()
        shutil.rmtree(self._run_dir, ignore_errors=True)


def with_threads(device: CloudDevice) -> CloudDevice:
    """Give a CPU device as many threads as it has CPUs, unless it is configured otherwise.

    Replicas come and go and share nodes, so their devices can't have their own cores.
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
    """Make replicas get ready one at a time: the first measures, the others read its profiles.

    If replicas measured at the same time on one node, they would distort each other's figures, and
    `CrashGuard` would take attempts in progress in other processes for crashes.
    """
    lock = open_lock(state_dir / "replicas.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class CloudWorkerProcess(WorkerProcess):
    """A device's worker, on the GPU that Ray chose for it."""

    def __init__(self, spec: DeviceSpec, *arguments: Any) -> None:
        """Start serving at once; for the arguments see `WorkerProcess`."""
        chosen = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if spec.kind == "gpu" and chosen and "emulated" not in spec.runtimes:
            gpu = int(chosen[0]) if chosen[0].isdecimal() else chosen[0]
            spec = replace(spec, options={"cuda": gpu, **spec.options})
        super().__init__(spec, *arguments)


CloudWorker = cast(Any, ray.remote)(max_restarts=-1, max_task_retries=-1)(CloudWorkerProcess)

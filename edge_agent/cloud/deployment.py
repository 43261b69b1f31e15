"""Deploy the application on a Ray cluster, look at it, and take it away."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.util import get_node_ip_address

from edge_agent.cloud.application import application
from edge_agent.cloud.config import ApplicationConfig
from edge_agent.cloud.record import Record, forget_record
from edge_agent.cloud.replica import NAMESPACE
from edge_agent.cluster import Cluster
from edge_agent.errors import AgentError
from edge_agent.listening import check_free
from edge_agent.run_dir import make_run_dir
from edge_agent.terminal import signals_held, wait_for_signal
from scheduler.address import plainly
from scheduler.files import folder_fault
from scheduler.policy_loading import check_policy
from scheduler.tenants import load_access
from workers.kernel_files import standing

_LOOK_S = 0.5
_ANSWER_S = 5.0

Progress = Callable[[list[dict[str, Any]]], None]
"""Called with the targets of all replicas; each id is prefixed with its replica's name."""


class Deployment:
    """The application of a configuration, on its own cluster or another's.

    Args:
        config: The application's configuration.
        file: The file it was read from.
        lock: The descriptor that locks its state folder, which this closes at the end.

    Attributes:
        record: The record that other commands read.
        lost: The part of its own cluster that has died, if any.

    Raises:
        AgentError: The cluster is not available.
        ConfigError: The policy can't be made, or the tokens can't be read.
    """

    def __init__(self, config: ApplicationConfig, file: Path, lock: int) -> None:
        """Start or join the cluster, and Ray Serve on it."""
        if config.ray.address is None:
            _check(config, file)
        self.config = config
        self.lost: str | None = None
        self._lock = lock
        self._cluster: Cluster | None = None
        self._run_dir: Path | None = None
        try:
            self._join_cluster()
            self.record = self._start_serve()
        except BaseException:
            self._clean_up()
            raise

    def _join_cluster(self) -> None:
        wanted = self.config.ray
        if wanted.address is not None:
            _connect(wanted.address)
            return
        self._run_dir = make_run_dir()
        cpus = wanted.cpus or len(os.sched_getaffinity(0))
        self._cluster = Cluster(self._run_dir / "ray", cpus, wanted.object_store_mb * 10**6)
        check_room(self.config, ray.cluster_resources())

    def _start_serve(self) -> Record:
        http = self.config.http
        started, own = not serve.status().proxies, standing(os.getpid())
        serve.start(
            proxy_location="HeadOnly" if self._cluster is not None else "EveryNode",
            http_options={"host": http.host, "port": http.port},
        )
        record = Record(
            self.config.name,
            str(http).replace("tcp://", "http://"),
            ray.get_runtime_context().gcs_address,
            self._cluster is not None,
            os.getpid(),
            own and own.started_ticks,
            started,
        )
        record.write(self.config.state_dir)
        return record

    def deploy(self, progress: Progress, stop: threading.Event) -> None:
        """Deploy the application; return once it serves or `stop` is set.

        Raises:
            AgentError: It can't be deployed; the message says why.
        """
        ended: list[BaseException | None] = []

        def run() -> None:
            try:
                serve.run(application(self.config), name=self.config.name)
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        threading.Thread(target=run, daemon=True, name="laxity-deploy").start()
        while not ended and not stop.wait(_LOOK_S):
            progress(
                [
                    {**target, "id": f"{replica['replica']} {target['id']}"}
                    for replica in replicas(self.config.name)
                    for target in replica["targets"]
                ]
            )
        if ended and ended[0] is not None:
            raise AgentError(f"the application can't be deployed: {ended[0]} {self._why()}")

    def _why(self) -> str:
        """The last line of each error that Ray Serve reports for the deployments."""
        found = serve.status().applications.get(self.config.name)
        messages = [each.message for each in found.deployments.values()] if found else []
        return " ".join(text.strip().splitlines()[-1] for text in messages if text.strip())

    def watch(self, stop: threading.Event, at_once: threading.Event) -> None:
        """Set both events once a part of its own cluster has died, and note it in `lost`."""

        def died(part: str) -> None:
            self.lost = part
            at_once.set()
            stop.set()

        if self._cluster is not None:
            self._cluster.watch(died)

    def stop(self, at_once: threading.Event) -> bool:
        """Remove the application, and its own cluster with it.

        Args:
            at_once: Once set, nothing waits for the application's requests any more.

        Returns:
            Whether its requests have ended or had `drain_s`.

        Raises:
            AgentError: It can't be removed.
        """
        ended: list[Exception | None] = []

        def remove() -> None:
            try:
                take_away(self.record, self.config.drain_s)
                ended.append(None)
            except Exception as error:
                ended.append(error)
            finally:
                at_once.set()

        if not at_once.is_set():
            threading.Thread(target=remove, daemon=True, name="laxity-remove").start()
            wait_for_signal(at_once)
        forget_record(self.config.state_dir)
        self._clean_up()
        if ended and ended[0] is not None:
            raise AgentError(f"the application was not removed in order: {ended[0]}")
        return bool(ended)

    def note_ready(self) -> None:
        """Record that the application serves."""
        self.record = replace(self.record, ready=True)
        self.record.write(self.config.state_dir)

    def leave(self) -> None:
        """Disconnect from another's cluster, where the application stays."""
        replace(self.record, pid=None).write(self.config.state_dir)
        ray.shutdown()
        os.close(self._lock)

    def _clean_up(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        else:
            ray.shutdown()
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        os.close(self._lock)


def take_away(record: Record, drain_s: float) -> None:
    """Remove the application from the cluster to which this process is connected.

    This shuts Ray Serve down too if laxity started it and no other application uses it now.

    Args:
        record: The application.
        drain_s: How long its requests may take to end, in seconds.

    Raises:
        TimeoutError: It is still there long after that time.
    """
    give_up_s = time.monotonic() + drain_s
    while True:
        try:
            serve.delete(record.name)
            break
        except TimeoutError:  # after a minute, whatever time the requests have
            if time.monotonic() > give_up_s:
                raise
    if record.started_serve and not serve.status().applications:
        serve.shutdown()


@contextlib.contextmanager
def connected(record: Record) -> Iterator[None]:
    """Connect to the record's cluster for a block.

    Raises:
        AgentError: The cluster can't be reached.
    """
    _connect(record.ray_address)
    try:
        yield
    finally:
        ray.shutdown()


def describe(record: Record) -> dict[str, Any]:
    """The application's status, for people and programs."""
    found = serve.status().applications.get(record.name)
    deployments = found.deployments.values() if found is not None else ()
    return {
        "name": record.name,
        "http": record.http,
        "ray_address": record.ray_address,
        "pid": record.pid,
        "status": found.status.value if found is not None else "NOT_DEPLOYED",
        "message": found.message if found is not None else "",
        "replica_states": {
            state: count for each in deployments for state, count in each.replica_states.items()
        },
        "replicas": replicas(record.name),
    }


def replicas(name: str) -> list[dict[str, Any]]:
    """The status of each replica's scheduler; replicas that don't answer are left out."""
    found = []
    for named in ray.util.list_named_actors(all_namespaces=True):
        application_name, _, replica = named["name"].partition("/")
        if named["namespace"] != NAMESPACE or application_name != name:
            continue
        with contextlib.suppress(RayActorError, ValueError, ray.exceptions.GetTimeoutError):
            scheduler = ray.get_actor(named["name"], NAMESPACE)
            asked = [scheduler.status.remote(), scheduler.models.remote()]
            status, models = ray.get(asked, timeout=_ANSWER_S)
            found.append({"replica": replica, **status, **models})
    return sorted(found, key=lambda each: each["replica"])


def _check(config: ApplicationConfig, file: Path) -> None:
    """Check what would fail in every replica, if they run on this machine.

    Raises:
        AgentError: The configuration can't work.
        ConfigError: The policy can't be made, or the tokens can't be read.
    """
    check_policy(config.policy, file)
    if fault := folder_fault(config.models):
        raise AgentError(f"the model repository {config.models}: {fault}")
    load_access(config.token_file, config.tenants_file)
    check_free(config.http)


def check_room(config: ApplicationConfig, has: Mapping[str, float]) -> None:
    """Check that the first replicas fit into a cluster that does not grow.

    Ray Serve would wait for room for ever.

    Raises:
        AgentError: They do not.
    """
    cpus = config.replicas.cpus + sum(device.cpus for device in config.devices)
    gpus = sum(device.gpus for device in config.devices)
    for kind, each, remedy in (
        ("CPU", cpus, "replicas.cpus or cpus of its devices, or raise ray.cpus"),
        ("GPU", gpus, "gpus of its devices"),
    ):
        if round(config.replicas.min * each, 4) > has.get(kind, 0):  # the digits that Ray counts
            raise AgentError(
                f"a replica takes {each:g} {kind}s, replicas.min is {config.replicas.min}, and the "
                f"cluster has {has.get(kind, 0):g}; lower replicas.min, {remedy}"
            )


def _connect(address: str) -> None:
    _check_reachable(address)
    try:
        with signals_held():
            ray.init(
                address=address,
                namespace=NAMESPACE,
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AgentError(
            f"no Ray cluster at {address}, or it asks for a token (RAY_AUTH_MODE=token and "
            f"RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH): {error}"
        ) from None


def _check_reachable(address: str) -> None:
    """Check whether something listens at HOST:PORT, which Ray would try for minutes.

    Raises:
        AgentError: Nothing does.
    """
    host, _, port = address.rpartition(":")
    if "/" in host or not port.isdecimal():
        return
    if host in ("localhost", "127.0.0.1", "[::1]"):
        host = get_node_ip_address()  # as Ray does
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as error:
        raise AgentError(f"no Ray cluster at {address}: {plainly(error)}") from None

"""Start, watch and stop everything that serves on a box."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
import structlog
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from edge_agent import contention
from edge_agent.checking import check_named
from edge_agent.cluster import Cluster
from edge_agent.doors import Doors
from edge_agent.errors import AgentError, cause_of
from edge_agent.hardware import Hardware, default_devices, scheduler_cores
from edge_agent.listening import check_free, remove_stale
from edge_agent.ray_files import RayFiles
from edge_agent.readiness import Readiness
from edge_agent.rebirth import is_first_life, mark_life, start_over
from edge_agent.run_dir import make_run_dir
from edge_agent.state_lock import locked
from edge_agent.watching import FileWatch
from edge_agent.worker_arguments import link_paths, worker_arguments
from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from scheduler.config.last_config import LastConfig
from scheduler.daemon.actor import LISTENING, SchedulerActor, SchedulerProcess
from scheduler.files import folder_fault, replace_file
from scheduler.ingress.secret_files import LastGood, groups_of
from workers.actor import DeviceWorker, WorkerProcess
from workers.control_group import ControlGroupError, hand_on_controllers
from workers.crash_guard import ATTEMPTS, forgive

log = structlog.get_logger()

_LOOK_S = 0.5
"""How often a start looks whether to stop, in seconds."""

_ANSWER_S = 5.0
"""How long the scheduler may take to answer a drain, beyond the drain itself."""


class Agent:
    """The scheduler and workers of a box, on their own Ray cluster.

    Args:
        config: The box's configuration.
        config_file: The file it was read from, watched for changes; None if there is none.
        over: Settings that override the file, as in `load_config`.
        hardware: The box's hardware.
        stop: Returns whether to stop waiting for the scheduler.

    Raises:
        AgentError: Another agent is running, or the configuration can't work on this box.
        SystemExit: `stop` returned True; everything was ended again.
    """

    def __init__(
        self,
        config: Config,
        config_file: Path | None,
        over: Mapping[str, Any],
        hardware: Hardware,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start Ray and the actors; the doors are open when this returns."""
        self.config = config
        self.devices = default_devices(hardware) if config.devices == "auto" else config.devices
        self._last_good = LastGood(config.state_dir)
        self._last_config: LastConfig | None = None
        if config_file is not None:
            self._last_config = LastConfig(config_file, over, config.state_dir)
        usable, broken = self._last_good.usable(config, is_new=is_first_life())
        for name, problem in broken:
            told = f"{name}: what was last in use stays until this is mended"
            log.error(told, error=str(problem))
        _check(usable, config_file, self.devices, hardware)
        if any(device.memory_mb is not None for device in self.devices):
            # Before Ray, whose processes inherit the group. Without it, workers report their
            # fallback.
            with contextlib.suppress(ControlGroupError):
                hand_on_controllers()
        self._lock = locked(config.state_dir, "agent")
        if self._last_config is not None:
            self._last_config.begin()
        if is_first_life():
            self._last_good.begin(config, {name for name, _ in broken})
        self._stopping = threading.Event()
        self._deciding = threading.Lock()
        self._ready, self._failed = threading.Event(), 0
        self._run_dir = make_run_dir()
        self._doors: Doors | None = None
        mark_life(self._run_dir)
        self._born_s = time.monotonic()
        try:
            self._cluster = Cluster(self._run_dir / "ray", len(hardware.cpu.usable))
        except BaseException:
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise
        try:
            self._cluster.watch(lambda part: self._start_over(f"Ray's {part} has died"))
            self._start(config_file, over, scheduler_cores(hardware), stop)
        except BaseException:
            self._clean_up(_started())
            raise

    def _start(
        self,
        config_file: Path | None,
        over: Mapping[str, Any],
        cores: tuple[int, ...],
        stop: Callable[[], bool],
    ) -> None:
        watch = FileWatch(_read_again(self.config, config_file))  # before the files are read
        links = link_paths(self.devices, self._run_dir)
        owned = {core for device in self.devices for core in device.cores}
        spare = tuple(core for core in cores if core not in owned)
        self.workers = {
            device.id: DeviceWorker.options(name=f"worker {device.id}").remote(
                *worker_arguments(self.config, device, links[device.id])
            )
            for device in self.devices
        }
        self.scheduler = SchedulerActor.options(name="scheduler").remote(
            self.config, config_file, over, links, spare, self._run_dir / "doors.sock"
        )
        asked = self.scheduler.addresses.remote()
        while not ray.wait([asked], timeout=_LOOK_S)[0]:  # for ever, if Ray can't place it
            if stop():
                sys.exit()
        try:
            self.addresses: list[str] = ray.get(asked)
        except RayActorError as error:
            raise AgentError(cause_of(error)) from None
        self._doors = Doors(self.config, self._run_dir, self._run_dir / "doors.sock", spare)
        self.addresses += self._doors.addresses
        replace_file(self._run_dir / LISTENING, json.dumps(self.addresses))
        actors = (SchedulerProcess.__name__, WorkerProcess.__name__)
        count, is_ready = lambda: 1 + len(self.workers) - self._failed, self._ready.is_set
        kept = (actors, count, is_ready, self._start_over, self._stopping)
        files = RayFiles(self._run_dir / "ray")
        threading.Thread(target=files.watch, args=kept, daemon=True).start()
        if self._last_config is not None:
            heard = (self._reload, self._stopping)
            threading.Thread(target=watch.run, args=heard, daemon=True).start()

    def _reload(self) -> None:
        """Make the scheduler and doors read the configuration, tokens and certificates again."""
        try:
            ray.get(self.scheduler.reload.remote())
        except RayActorError:  # it reads the file when it restarts
            pass
        except RayTaskError as error:  # of any kind: keep watching for later changes
            log.error("the configuration could not be reloaded", error=cause_of(error))
        if self._doors is not None:
            self._doors.reload()

    def models(self) -> dict[str, Any]:
        """The models that the box can run, and the problems of those it can't."""
        answer: dict[str, Any] = ray.get(self.scheduler.models.remote())
        return answer

    def wait_ready(
        self, progress: Callable[[list[dict[str, Any]]], None], stop: Callable[[], bool]
    ) -> dict[str, str]:
        """Wait until every device is ready or failed; return the failed ones with the reason.

        Args:
            progress: Called repeatedly with the devices among the targets of `status`.
            stop: Returns whether to stop waiting.

        Raises:
            AgentError: No device can be used.
        """
        failed = Readiness(self.scheduler, self.workers).wait(progress, stop)
        self._failed = len(failed)
        self._ready.set()
        self._measure_contention(failed)
        return failed

    def _measure_contention(self, failed: Mapping[str, str]) -> None:
        workers = {
            device.id: self.workers[device.id]
            for device in self.devices
            if device.id not in failed and "emulated" not in device.runtimes
        }
        contention.measure_in_background(workers, self.config.state_dir / "contention.json")

    def drain(self) -> int:
        """Stop admission, wait at most `drain_s` for held requests, and count those cut off.

        Raises:
            AgentError: The scheduler does not answer, or ends with the requests that it holds.
        """
        self._stop_for_good()
        seconds = self.config.drain_s
        end_s = time.monotonic() + seconds + _ANSWER_S
        if self._doors is not None:
            self._doors.begin_drain()

        def answer(asked: Any) -> Any:
            return ray.get(asked, timeout=max(0.0, end_s - time.monotonic()))

        held = "unknown"
        try:
            held = answer(self.scheduler.status.remote())["held"]  # also of one just restarted
            left: int = answer(self.scheduler.drain.remote(seconds))
        except GetTimeoutError as error:
            raise AgentError(f"the scheduler could not be drained: {error}") from None
        except RayActorError:
            raise AgentError(
                "the scheduler ended during the drain: of the requests that it held at the start "
                f"({held}), those not answered by then are lost, except durable tasks"
            ) from None
        return left

    def stop(self) -> None:
        """End every process at once."""
        self._stop_for_good()
        ended = _started()
        if self._doors is not None:
            self._doors.stop()
        for actor in (self.scheduler, *self.workers.values()):
            with contextlib.suppress(RayActorError):
                ray.kill(actor, no_restart=True)
        self._clean_up(ended, self._forget)

    def _forget(self) -> None:
        """Forget what was last usable: at the next start somebody is there to read mistakes."""
        self._last_good.forget()
        if self._last_config is not None:
            self._last_config.forget()

    def _start_over(self, why: str) -> None:
        """Start over, from any thread: threads of the old life may wait for Ray for ever."""
        with self._deciding:
            if not self._stopping.is_set():
                log.error("starting over", reason=why)
                # The next life ends the workers that are left, whatever they are trying.
                forgive(self.config.state_dir / ATTEMPTS, _started())
                start_over(self._born_s, self._run_dir, self.config.listen.all)

    def _stop_for_good(self) -> None:
        """From now on nothing is restarted; does not return if the agent is starting over.

        It would remove the files in which the next life finds the signal that ends it.
        """
        with self._deciding:
            self._stopping.set()

    def _clean_up(
        self, ended: Container[int], in_the_end: Callable[[], None] = lambda: None
    ) -> None:
        self._stop_for_good()
        self._cluster.stop()
        in_the_end()
        forgive(self.config.state_dir / ATTEMPTS, ended)
        remove_stale(self.config.listen.all)
        shutil.rmtree(self._run_dir, ignore_errors=True)
        os.close(self._lock)


def _started() -> set[int]:
    """The ids of the processes that this one has started, directly or not."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _read_again(config: Config, file: Path | None) -> list[Path]:
    """The files that are read again when they change."""
    named = [path for group in groups_of(config) for path in group.files.values()]
    return [*([file] if file is not None else []), *dict.fromkeys(named)]


def _check(
    config: Config, file: Path | None, devices: tuple[DeviceConfig, ...], hardware: Hardware
) -> None:
    check_named(config, file)
    if fault := folder_fault(config.models):
        raise AgentError(
            f"the model repository {config.models}: {fault}; name one with --models or "
            "under 'models' in the configuration (to just look around: laxity demo)"
        )
    for device in devices:
        if missing := hardware.cpu.lacks(device.cores):
            raise AgentError(
                f"device {device.id} wants cores {missing}; this process may use "
                f"{list(hardware.cpu.usable)}"
            )
    for address in config.listen.all:
        check_free(address, config.listen.all)

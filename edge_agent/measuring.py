"""Measure a box's devices without starting the box: one process per device, one at a time."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from edge_agent.errors import AgentError
from edge_agent.state_lock import locked
from edge_agent.worker_arguments import WorkerArguments, worker_arguments
from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from workers.crash_guard import ATTEMPTS, forgive
from workers.device_host import DeviceHost, Measured
from workers.repository import RepositoryError
from workers.runtimes.base import DeviceError

Tell = Callable[[str, int, int, str], None]
"""Called with a device's id, the steps done, the steps in total, and what is happening."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The measurements of one device.

    Attributes:
        device: Its id.
        about: The device and its runtimes, in one line.
        measured: The measurements of each runtime with each variant.
        problems: What went wrong or can't be served, and why.
    """

    device: str
    about: str
    measured: tuple[Measured, ...]
    problems: tuple[str, ...]


def measure(
    config: Config, devices: Sequence[DeviceConfig], keep: bool, tell: Tell
) -> Iterator[DeviceFigures]:
    """Profile every model on each device, as an agent does at its first start.

    Earlier measurements are read from the box's state folder, and new ones stored there.

    Args:
        config: The box's configuration.
        devices: The devices to measure.
        keep: False to measure everything again, and to leave the state folder unchanged.
        tell: Called with the progress.

    Raises:
        AgentError: An agent uses the state folder, or the folder or a device is not available.
    """
    with _state_dir(config, keep) as state_dir:
        own = config.model_copy(update={"state_dir": state_dir})
        for device in devices:
            yield _in_a_process(worker_arguments(own, device, Path()), tell)


@contextmanager
def _state_dir(config: Config, keep: bool) -> Iterator[Path]:
    if not keep:
        with tempfile.TemporaryDirectory(prefix="laxity-profile-") as folder:
            yield Path(folder)
        return
    lock = locked(config.state_dir, "agent")
    try:
        yield config.state_dir
    finally:
        os.close(lock)


def _in_a_process(arguments: WorkerArguments, tell: Tell) -> DeviceFigures:
    """Measure a device in a fresh process, because its limits and cores apply to the process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            said = here.recv()
            if isinstance(said, DeviceFigures):
                return said
            if isinstance(said, str):
                raise AgentError(said)
            tell(arguments[0].id, *said)
    except EOFError:
        process.join()
        raise AgentError(
            f"{arguments[0].id}: its process ended with status {process.exitcode}; run it again: "
            "what ends it three times is left out"
        ) from None
    finally:
        if process.is_alive():  # it has not died of what it may be trying
            process.terminate()
            process.join()
            forgive(arguments[2] / ATTEMPTS, {process.pid or 0})
        here.close()


def _work(arguments: WorkerArguments, pipe: Connection) -> None:
    spec, models, state_dir, _, max_batch, effort = arguments
    try:
        host = DeviceHost(spec, models, state_dir, max_batch, effort)
        for _ in host.prepare(lambda *step: pipe.send(step)):
            pass
        problems = [f"{p.model}: {p.reason}" for p in host.repository.problems]
        problems += [": ".join(problem.told()) for problem in host.problems]
        pipe.send(DeviceFigures(spec.id, host.describe(), tuple(host.measured()), tuple(problems)))
        host.close()
    except (DeviceError, RepositoryError) as error:
        pipe.send(str(error))
    except Exception as error:  # from any library; the parent process shows it
        pipe.send(f"{spec.id}: {type(error).__name__}: {error}")

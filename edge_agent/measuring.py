"""Measures what a box's devices can do, without a box: one process for each, one after another."""

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
from scheduler.config.box import Config, DeviceConfig
from workers.device_host import DeviceHost, Measured
from workers.repository import RepositoryError
from workers.runtimes.base import DeviceError

Tell = Callable[[str, int, int, str], None]
"""Told a device's id, how many steps are done, how many there are, and what is happening."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """What was measured of one device.

    Attributes:
        device: Its id.
        about: The device and its runtimes, in a line.
        measured: What each runtime did with each variant.
        problems: What went wrong, or could not be served, and why.
    """

    device: str
    about: str
    measured: tuple[Measured, ...]
    problems: tuple[str, ...]


def measure(
    config: Config, devices: Sequence[DeviceConfig], keep: bool, tell: Tell
) -> Iterator[DeviceFigures]:
    """Profile every model on each device, as an agent does at its first start.

    What the box has measured before is taken from its state folder, and what is new kept there.

    Args:
        config: The box's configuration.
        devices: Those to measure.
        keep: False to measure everything anew, and to leave the state folder as it is.
        tell: Hears how far it is.

    Raises:
        AgentError: An agent uses the state folder, or it or a device cannot be had.
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
    """A device's limits and cores are its process's, so each gets a fresh one."""
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
            f"{arguments[0].id}: its process ended with status {process.exitcode}; what it died "
            "of is left out the next time"
        ) from None
    finally:
        process.terminate()
        process.join()
        here.close()


def _work(arguments: WorkerArguments, pipe: Connection) -> None:
    spec, models, state_dir, _, max_batch, effort = arguments
    try:
        host = DeviceHost(spec, models, state_dir, max_batch, effort)
        for _ in host.prepare(lambda *step: pipe.send(step)):
            pass
        problems = [f"{p.model}: {p.reason}" for p in host.repository.problems]
        problems += [f"{p.model}/{p.variant}, {p.runtime}: {p.reason}" for p in host.problems]
        pipe.send(DeviceFigures(spec.id, host.describe(), tuple(host.measured()), tuple(problems)))
        host.close()
    except (DeviceError, RepositoryError) as error:
        pipe.send(str(error))
    except Exception as error:  # of any library; the other end has the terminal
        pipe.send(f"{spec.id}: {type(error).__name__}: {error}")

"""`laxity cloud`: a cloud tier of your own, on Ray Serve."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from scheduler.cli.help import COMMAND, COMMANDS, examples
from scheduler.cli.streams import AsJson, print_json
from scheduler.cli.tables import plain_table
from scheduler.errors import LaxityError
from scheduler.launching import launch_folder

if TYPE_CHECKING:
    from edge_agent.cloud.config import ApplicationConfig
    from edge_agent.cloud.record import Record

_LOOK_S = 0.2
_BETWEEN_S = 180.0
"""How long it may start, or end, without a record: three starts of Ray take half of that."""

_END_S = 60.0
"""How long the process that holds a cluster may take to end, after the time to drain requests."""

app = typer.Typer(**COMMANDS)
console = Console(stderr=True, highlight=False, soft_wrap=True)

ConfigFile = Annotated[
    Path, typer.Option("--config", help="The application's YAML file, such as configs/cloud.yaml.")
]


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity cloud up --config cloud.yaml", "until Ctrl-C"),
        ("laxity cloud up --config cloud.yaml --detach", "until `laxity cloud down`"),
        ("laxity cloud up --config cloud.yaml --address auto", "on a running Ray cluster"),
    ),
)
def up(
    config: ConfigFile,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it serves.")] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A running Ray cluster, instead of a new one."),
    ] = None,
    # The descriptor of the lock, for the process that `--detach` starts.
    lock: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve a model repository as a Ray Serve application, with replicas that come and go."""
    settings = _load(config, address)
    if lock is None:
        lock = _locked(settings)
    else:
        os.set_inheritable(lock, False)
    if detach and settings.ray.address is None:
        _detach(config, settings, lock)
    else:
        _serve(settings, config, lock, detach)


@app.command(
    **COMMAND,
    epilog=examples(("laxity cloud down --config cloud.yaml", "what `up` has started")),
)
def down(config: ConfigFile, as_json: AsJson = False) -> None:
    """Stop what `up` has started, and nothing else."""
    settings = _load(config)
    record = _record(settings) or _record_later(config, settings)
    if record is not None:
        _end(record, settings)
    if as_json:
        print_json({"stopped": record.name if record is not None else None})
    else:
        print("nothing is up" if record is None else f"{record.name} is down")


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity cloud status --config cloud.yaml", "replicas, models, addresses"),
        ("laxity cloud status --config cloud.yaml --json | jq .replica_states", "for scripts"),
    ),
)
def status(config: ConfigFile, as_json: AsJson = False) -> None:
    """Show the state of the application; exit status 1 if it is not up."""
    settings = _load(config)
    record = _record(settings)
    if record is None and _is_between(settings):
        raise LaxityError(f"the application of {config} is starting or ending")
    if record is None:
        raise LaxityError(f"nothing is up for {config}; start it with: laxity cloud up")
    from edge_agent.cloud.deployment import connected, describe

    with connected(record):
        described = describe(record)
    if as_json:
        print_json(described)
    else:
        Console().print(view(described))


def _load(file: Path, address: str | None = None) -> ApplicationConfig:
    """Loads the configuration and sets Ray's environment; Ray may be imported afterwards."""
    from edge_agent.cloud.config import load_cloud_config
    from edge_agent.ray_settings import set_ray_environment

    config = load_cloud_config(file)
    if address is not None:
        ray = config.ray.model_copy(update={"address": address})
        config = config.model_copy(update={"ray": ray})
    record = _record(config)
    if record.own_ray if record is not None else config.ray.address is None:
        set_ray_environment(config.state_dir)
    return config


def _record(config: ApplicationConfig) -> Record | None:
    from edge_agent.cloud.record import read_record

    return read_record(config.state_dir)


def _is_between(config: ApplicationConfig) -> bool:
    """Whether a process is starting or ending the application, and has no record of it."""
    from edge_agent.state_lock import is_held

    return is_held(config.state_dir, "cloud")


def _record_later(file: Path, config: ApplicationConfig) -> Record | None:
    """Waits for an application that is starting or ending; returns its record if it is up then.

    Raises:
        LaxityError: It takes longer than either does, so that its record must have been removed.
    """
    end_s = time.monotonic() + _BETWEEN_S
    while (record := _record(config)) is None and _is_between(config):
        if time.monotonic() > end_s:
            raise LaxityError(
                f"the application of {file} has been starting or ending for {_BETWEEN_S:.0f} s, or "
                f"its record in {config.state_dir} was removed; end `laxity cloud up` by SIGTERM"
            )
        time.sleep(_LOOK_S)
    return record


def _locked(config: ApplicationConfig) -> int:
    """Locks the state folder, so that no other process starts or ends the application meanwhile."""
    from edge_agent.state_lock import locked

    if (record := _record(config)) is not None:
        raise LaxityError(f"{record.name} is up already, at {record.http}")
    if _is_between(config):
        raise LaxityError(f"another `laxity cloud up` is starting or ending in {config.state_dir}")
    return locked(config.state_dir, "cloud")


def _serve(config: ApplicationConfig, file: Path, lock: int, leave: bool) -> None:
    from edge_agent.cloud.deployment import Deployment
    from edge_agent.errors import AgentError
    from edge_agent.terminal import DeviceBars, on_signals, wait_for_signal

    stop, at_once = threading.Event(), threading.Event()
    on_signals(stop, at_once)
    deployment = Deployment(config, file, lock)
    try:
        deployment.watch(stop, at_once)
        if not stop.is_set():
            with DeviceBars(console) as bars:
                deployment.deploy(bars.show, stop)
        if not stop.is_set():
            deployment.note_ready()
            console.print(f"Listening on {deployment.record.http}")
            console.print("[green]Ready.[/green]")
        if leave and not stop.is_set():
            deployment.leave()
            return
        wait_for_signal(stop)
        if deployment.lost is not None:
            raise AgentError(f"Ray's {deployment.lost} has died, and the application with it")
        console.print(
            "Ending; requests that were accepted finish first. A second signal ends at once."
        )
    except BaseException:
        deployment.stop(at_once)
        raise
    if not deployment.stop(at_once):
        raise typer.Exit(1)


def _detach(file: Path, config: ApplicationConfig, lock: int) -> None:
    """Starts a process that holds the cluster and the lock, and shows its output until it serves.

    A signal that arrives by then ends that process, too.
    """
    from edge_agent.terminal import exit_on_signals

    exit_on_signals()
    log = config.state_dir / "cloud.log"
    file = file.absolute()
    program = [sys.executable, "-m", "scheduler.cli", "cloud", "up", "--config", str(file)]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*program, "--lock", str(lock)],
            cwd=launch_folder(),
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    os.close(lock)
    with log.open(encoding="utf-8", errors="replace") as said:
        try:
            while process.poll() is None:
                _show(said)
                record = _record(config)
                if record is not None and record.ready:
                    _show(said)
                    console.print(f"It continues as process {process.pid}, and logs to {log}")
                    return
                time.sleep(_LOOK_S)
        except SystemExit:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        _show(said)
    raise LaxityError(f"the application did not come up; see {log}")


def _show(said: IO[str]) -> None:
    if text := said.read():
        console.print(text, end="", markup=False)


def _end(record: Record, config: ApplicationConfig) -> None:
    import psutil

    process = record.process()
    if process is None:
        _end_elsewhere(record, config)
        return
    processes = [process]
    with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself just now
        processes += process.children(recursive=True)
        process.terminate()
    left = _left(processes, config.drain_s + _END_S)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if left:
        console.print(f"{len(left)} of {len(processes)} processes had to be killed")


def _end_elsewhere(record: Record, config: ApplicationConfig) -> None:
    """Removes the application from an existing cluster, on which `up` deployed it."""
    from edge_agent.cloud.deployment import connected, take_away
    from edge_agent.cloud.record import forget_record, record_file
    from edge_agent.errors import AgentError

    try:
        with connected(record):
            take_away(record, config.drain_s)
    except AgentError as error:
        file = record_file(config.state_dir)
        raise LaxityError(f"{error}; if it is gone for good, delete {file}") from None
    forget_record(config.state_dir)


def _left(processes: list[Any], seconds: float) -> list[Any]:
    """The processes that still run after so long; not those that only their parent has to note."""
    end_s = time.monotonic() + seconds
    while (left := [each for each in processes if _runs(each)]) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return left


def _runs(process: Any) -> bool:
    import psutil

    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def view(described: dict[str, Any]) -> RenderableType:
    """A summary of the application, from its `status`."""
    states = ", ".join(f"{n} {state.lower()}" for state, n in described["replica_states"].items())
    head = Text(described["name"], style="bold")
    head.append(
        f"  {described['status'].lower()} · {described['http']} · replicas: {states or 'none'}",
        style="not bold",
    )
    table = plain_table(
        "replica", "targets", "models", "held", "completed", right=("held", "completed")
    )
    for replica in described["replicas"]:
        targets = ", ".join(
            f"{target['id']} {'up' if target['up'] else 'down'}" for target in replica["targets"]
        )
        table.add_row(
            replica["replica"],
            targets,
            ", ".join(model["name"] for model in replica["models"]),
            str(replica["held"]),
            str(replica["outcomes"].get("completed", 0)),
        )
    parts: list[RenderableType] = [head, Text(), table]
    told = {f"{p['model']}: {p['reason']}" for r in described["replicas"] for p in r["problems"]}
    parts += [Text(each, style="yellow") for each in sorted(told)]
    if described["message"]:
        parts.append(Text(described["message"], style="yellow"))
    return Group(*parts)

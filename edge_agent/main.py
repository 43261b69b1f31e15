"""`edge_agent`: the command that starts serving on a box."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_agent.cloud.config import is_cloud_config
from edge_agent.errors import AgentError
from edge_agent.hardware import describe
from edge_agent.open_files import allow_open_files
from edge_agent.probing import Probing, probe_apart
from edge_agent.ray_settings import set_ray_environment
from edge_agent.rebirth import end_past_life, rest_after_short_lives, try_again
from edge_agent.state_lock import mask_writing
from edge_agent.terminal import (
    DeviceBars,
    exit_on_signals,
    ignore_signals,
    on_signals,
    signals_held,
    wait_for_signal,
    whole_lines,
)
from scheduler.address import AddressError
from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import print_json
from scheduler.config.box import Config
from scheduler.config.last_config import load_again
from scheduler.config.neighbours import peer_address
from scheduler.config.problems import ConfigError
from scheduler.daemon.logs import set_up_logging
from scheduler.files import folder_fault

if TYPE_CHECKING:
    from edge_agent.agent import Agent

app = typer.Typer(add_completion=False)
console = whole_lines()


@app.command(
    cls=COMMAND["cls"],
    context_settings={**COMMAND["context_settings"], "allow_extra_args": True},
    epilog=examples(
        ("edge_agent", "serve ./models on what this box has"),
        ("edge_agent --config edge.yaml", "as the file says; see configs/edge.yaml"),
        (
            "edge_agent --config edge.yaml --join 10.0.0.7:8702",
            "share work with that box and those it knows",
        ),
        ("edge_agent --probe", "print the hardware of this box and exit"),
    ),
)
def serve(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="YAML file; `laxity config schema` documents it.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Model repository, instead of the configuration's.")
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The native door of another box of the site; may be given several times.",
        ),
    ] = None,
    probe_only: Annotated[
        bool, typer.Option("--probe", help="Print the hardware of this box and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --probe: as JSON.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version, and stop.")
    ] = False,
) -> None:
    """Serve inference with deadlines on this box until SIGTERM or Ctrl-C.

    The first signal drains: no new request is admitted, accepted ones finish or expire within
    `drain_s`, and the exit status is 0, or 1 if the scheduler ends meanwhile, with the requests
    that it holds. The second signal ends the agent at once with status 1.
    """
    if show_version:
        print(f"laxity {version('laxity')}")
        return
    if ctx.args:
        _complain(f"unexpected {ctx.args[0]!r}; a configuration is given as --config FILE")
        raise typer.Exit(2)
    if as_json and not probe_only:
        _complain("--json works only with --probe; for a running box use `laxity status --json`")
        raise typer.Exit(2)
    if probe_only and (config is not None or models is not None or join):
        _complain("--probe works without a configuration: leave out --config, --models and --join")
        raise typer.Exit(2)
    if wrong := _unusable(config, models, join or ()):
        _complain(wrong)
        try_again()
        raise typer.Exit(2)
    if probe_only:
        raise typer.Exit(_probe(as_json))
    over: dict[str, Any] = {"neighbours": {"join": join}} if join else {}
    if models is not None:
        over["models"] = str(models.absolute())
    try:
        check = partial(_check_settings, config)
        settings, mistake = load_again(config, over, check)
        if settings.log.format == "auto":  # Ray's processes have no terminal to detect
            over["log"] = {"format": "console" if console.is_terminal else "json"}
            settings, mistake = load_again(config, over, check)
    except ConfigError as error:
        _complain(error)
        with contextlib.suppress(ConfigError):  # it can't be read, as was just said
            if config is not None and is_cloud_config(config):
                _complain(f"{config} looks like a file for `laxity cloud up`, not for a box")
        try_again()
        raise typer.Exit(2) from None
    if mistake is not None:
        _complain(mistake)
        _complain("Until this is mended, the last configuration without a mistake stays.")
    raise typer.Exit(_run(settings, config, over))


def _check_settings(file: Path | None, config: Config) -> None:
    from scheduler.device_specs import check_here  # slow to import: the runtimes
    from scheduler.policy_loading import check_policy  # and all policies

    check_policy(config.policy, file)
    check_here(config, file)


def _probe(as_json: bool) -> int:
    try:
        hardware = probe_apart()
    except AgentError as error:
        _complain(error)
        return 1
    if as_json:
        print_json(asdict(hardware))
    else:
        print("\n".join(describe(hardware)))
    return 0


def _unusable(config: Path | None, models: Path | None, join: Sequence[str]) -> str | None:
    """What is wrong with the command line, whatever the configuration says."""
    if config is not None and _is_special(config):
        return f"--config {config}: must be a regular file, as it is read again when it changes"
    if models is not None and (fault := folder_fault(models)):
        return f"--models {models}: {fault} (to just look around: laxity demo)"
    for place in join:
        try:
            peer_address(place)
        except AddressError as error:
            return f"--join {place}: {error}"
    return None


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device; unlike pathlib, `os.path` fails in no closed folder."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def _run(config: Config, config_file: Path | None, over: Mapping[str, Any]) -> int:
    at_once = threading.Event()
    try:
        stop = exit_on_signals()
        set_up_logging(config.log)
        mask_writing()
        rest_after_short_lives()
        with Probing() as probing:
            allow_open_files(config.limits.connections)
            set_ray_environment(config.state_dir)
            with signals_held():
                from edge_agent.agent import Agent  # imports Ray, which then reads its environment
            hardware = probing.wait()
        for line in describe(hardware):
            console.print(line, markup=False)
        on_signals(stop, at_once)
        if stop.is_set():
            return 0
        agent = Agent(config, config_file and config_file.absolute(), over, hardware, stop.is_set)
    except AgentError as error:
        _complain(error)
        try_again(stop.is_set)
        return error.exit_status
    except SystemExit:  # a signal; nothing serves yet
        return 0
    try:
        for address in agent.addresses:
            console.print(f"Listening on {address}", markup=False)
        failed = _show_progress(agent, stop)
        for device, reason in failed.items():
            _complain(f"{device} is not used: {reason}")
        found = agent.models()
        if not found["models"] and not found["problems"]:
            console.print(
                f"There is no model in {config.models}: a model is a folder with a model.yaml, or "
                "with 1/model.onnx. One that is added is served some seconds later.",
                style="yellow",
                markup=False,
            )
        if not stop.is_set():
            console.print("[green]Ready.[/green] Stop with SIGTERM or Ctrl-C.")
        wait_for_signal(stop)
        return _drain(agent, at_once)
    except AgentError as error:
        _complain(error)
        return 1
    finally:
        agent.stop()
        ignore_signals()


def _complain(problem: object) -> None:
    console.print(str(problem), style="red", markup=False)


def _show_progress(agent: Agent, stop: threading.Event) -> dict[str, str]:
    with DeviceBars(console) as bars:
        return agent.wait_ready(bars.show, stop.is_set)


def _drain(agent: Agent, at_once: threading.Event) -> int:
    """Let accepted requests finish; return 0 unless a second signal cut that short."""
    console.print("Draining; a second signal ends at once.")
    drained = threading.Event()

    def work() -> None:
        try:
            left = agent.drain()
            if left:
                console.print(f"Requests cancelled at the end of the drain: {left}.")
            drained.set()
        except AgentError as error:
            _complain(error)
        finally:
            at_once.set()

    threading.Thread(target=work, daemon=True).start()
    wait_for_signal(at_once)
    return 0 if drained.is_set() else 1


def main() -> None:
    """The entry point of the command."""
    end_past_life()
    sys.exit(app())


if __name__ == "__main__":
    main()

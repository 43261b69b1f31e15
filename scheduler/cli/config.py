"""`laxity config`: checks a configuration, or prints its schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from scheduler.address import spoken
from scheduler.cli.help import COMMAND, COMMANDS, examples
from scheduler.cli.tables import policy_text
from scheduler.config.box import Config, DeviceConfig, config_schema, load_config
from scheduler.config.cache import without_secrets

app = typer.Typer(**COMMANDS)


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity config check edge.yaml", "every mistake, with its line"),
        ("laxity config check edge.yaml --json", "with every default"),
    ),
)
def check(
    file: Annotated[Path, typer.Argument(help="The YAML file.", show_default=False)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole configuration, defaults filled in.")
    ] = False,
) -> None:
    """Report every mistake in a configuration file; exit status 1 if there is one."""
    from edge_agent.checking import check_named  # slow to import: the runtimes

    config = load_config(file)
    check_named(config, file, lambda path: os.access(path, os.R_OK))
    if as_json:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return
    print(f"{file} is good:")
    for key, value in _summary(config).items():
        print(f"  {key:<8} {value}")


def _listed(config: Config) -> tuple[DeviceConfig, ...]:
    return () if config.devices == "auto" else config.devices


def _described(device: DeviceConfig) -> str:
    """A device's id, and its cores that this machine lacks: the file may be for another machine."""
    missing = sorted(set(device.cores) - os.sched_getaffinity(0))
    cores = ", ".join(map(str, missing))
    return f"{device.id} (core {cores} is not available here)" if missing else device.id


def _summary(config: Config) -> dict[str, str]:
    listen = config.listen
    doors = {
        "native": [str(address) for address in listen.native],
        "http": [spoken("http", str(address)) for address in listen.http],
        "grpc": [spoken("grpc", str(address)) for address in listen.grpc],
    }
    return {
        "site": config.site,
        **{kind: ", ".join(urls) for kind, urls in doors.items() if urls},
        "models": f"{config.models}{_missing(config.models)}",
        "devices": ", ".join(map(_described, _listed(config))) or "auto",
        "policy": policy_text({**config.policy.options, "name": config.policy.name}),
        "state": f"{config.state_dir}{_in_the_way(config.state_dir)}",
        **_beyond_the_box(config),
        **{key: f"{path}{_unread(path)}" for key, path in _secrets(config).items()},
    }


def _beyond_the_box(config: Config) -> dict[str, str]:
    said = {}
    if config.cache is not None:
        said["cache"] = without_secrets(config.cache.url)
    if config.cloud:
        said["cloud"] = ", ".join(f"{each.name} at {each.url}" for each in config.cloud)
    if (boxes := config.neighbours) is not None:
        joins = f", joins {', '.join(map(str, boxes.join))}" if boxes.join else ""
        said["boxes"] = f"this is {boxes.name}{joins}"
    return said


def _secrets(config: Config) -> dict[str, Path]:
    named = {"token": config.token_file, "tenants": config.tenants_file}
    if (tls := config.tls) is not None:
        named |= {"cert": tls.cert, "key": tls.key, "clients": tls.client_ca}
    named |= {f"token of {cloud.name}": cloud.token_file for cloud in config.cloud}
    return {key: path for key, path in named.items() if path is not None}


def _missing(folder: Path) -> str:
    return _in_the_way(folder) or ("" if folder.is_dir() else " (no such folder yet)")


def _in_the_way(folder: Path) -> str:
    return " (not a folder)" if folder.exists() and not folder.is_dir() else ""


def _unread(path: Path) -> str:
    """Why a file can't be read here; it may be meant for another machine or user."""
    if os.access(path, os.R_OK):
        return ""
    return " (can't be read by this user)" if os.path.lexists(path) else " (no such file yet)"


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity config schema > laxity.schema.json", ""),
        (
            "# yaml-language-server: $schema=./laxity.schema.json",
            "then, as the first line of a configuration, editors complete from it:",
        ),
    ),
)
def schema(
    as_json: Annotated[bool, typer.Option("--json", help="The output is always JSON.")] = False,
) -> None:
    """Print the JSON schema of the configuration file, with every key's meaning."""
    print(json.dumps(config_schema(), indent=2))

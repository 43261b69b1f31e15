"""`laxity config`: checks a configuration, or prints its schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.address import spoken
from scheduler.cli.help import COMMAND, COMMANDS, examples
from scheduler.cli.streams import print_json
from scheduler.cli.tables import policy_text
from scheduler.config.box import Config, config_schema, load_config
from scheduler.config.cache import without_secrets
from scheduler.config.devices import DeviceConfig
from scheduler.config.types import Section, as_door
from scheduler.files import NO_FOLDER, folder_fault

if TYPE_CHECKING:
    from edge_agent.cloud.config import ApplicationConfig
    from edge_agent.processors import Cpu

app = typer.Typer(**COMMANDS)


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity config check edge.yaml", "every mistake, with its line"),
        ("laxity config check edge.yaml --json", "with every default"),
        ("laxity config check cloud.yaml", "also a file for laxity cloud up"),
    ),
)
def check(
    file: Annotated[Path, typer.Argument(help="The YAML file.", show_default=False)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole configuration, defaults filled in.")
    ] = False,
) -> None:
    """Report every mistake in a configuration file; exit status 1 if there is one."""
    from edge_agent.cloud.config import is_cloud_config

    config: Section
    if is_cloud_config(file):
        config, summary, whose = *_checked_cloud(file), ", for laxity cloud up"
    else:
        config, summary, whose = *_checked_box(file), ""
    if as_json:
        print_json(config.model_dump(mode="json"))
        return
    print(f"{file} is good{whose}:")
    for key, value in summary.items():
        print(f"  {key:<8} {value}")


def _checked_box(file: Path) -> tuple[Config, dict[str, str]]:
    from edge_agent.checking import check_named  # slow to import: the runtimes

    config = load_config(file)
    check_named(config, file, _may_read)
    return config, _summary(config)


def _checked_cloud(file: Path) -> tuple[ApplicationConfig, dict[str, str]]:
    from edge_agent.checking import check_named
    from edge_agent.cloud.config import load_cloud_config

    config = load_cloud_config(file)
    replica = config.of_replica(Path("/replica.sock"))
    check_named(replica.model_copy(update={"devices": config.devices}), file, _may_read)
    secrets = {"token": config.token_file, "tenants": config.tenants_file}
    return config, {
        "name": config.name,
        "http": f"http://{as_door(config.http)}",
        "models": f"{config.models}{_missing(config.models)}",
        "devices": ", ".join(device.id for device in config.devices),
        "replicas": f"{config.replicas.min} to {config.replicas.max}",
        "policy": policy_text({**config.policy.options, "name": config.policy.name}),
        "state": f"{config.state_dir}{_in_the_way(config.state_dir)}",
        **{key: f"{path}{_unread(path)}" for key, path in secrets.items() if path is not None},
    }


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK)


def _described(device: DeviceConfig, cpu: Cpu) -> str:
    """A device's id, and its cores that this machine lacks: the file may be for another machine."""
    missing = ", ".join(map(str, cpu.lacks(device.cores)))
    return f"{device.id} (core {missing} is not available here)" if missing else device.id


def _summary(config: Config) -> dict[str, str]:
    from edge_agent.processors import probe_cpu

    listen, cpu = config.listen, probe_cpu(Path("/"))
    doors = {
        "native": [str(address) for address in listen.native],
        "http": [spoken("http", str(address)) for address in listen.http],
        "grpc": [spoken("grpc", str(address)) for address in listen.grpc],
    }
    return {
        "site": config.site,
        **{kind: ", ".join(urls) for kind, urls in doors.items() if urls},
        "models": f"{config.models}{_missing(config.models)}",
        "devices": ", ".join(_described(device, cpu) for device in config.listed_devices) or "auto",
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
    return _in_the_way(folder) or ("" if os.path.isdir(folder) else " (no such folder yet)")


def _in_the_way(folder: Path) -> str:
    fault = folder_fault(folder)
    return "" if fault in (None, NO_FOLDER) else f" ({fault})"


def _unread(path: Path) -> str:
    """Why a file can't be read here; it may be meant for another machine or user."""
    if os.access(path, os.R_OK):
        return ""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return " (no such file yet)"
    except OSError:  # it is in a folder that this user can't enter
        pass
    return " (can't be read by this user)"


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
    print_json(config_schema())

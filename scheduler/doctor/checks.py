"""The checks of a box's environment; each reports what it found and what would be right.

A check is a function from the surroundings to findings; `CHECKS` lists them in display order.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TypedDict, cast

from scheduler.config.box import Config
from scheduler.config.cache import IN_CLUSTER, why_away, without_secrets
from scheduler.doctor.certificates import check_certificates
from scheduler.doctor.findings import NO_START, Check, Finding, Surroundings
from scheduler.doctor.machine import check_memory, check_open_files, check_processor
from scheduler.doctor.neighbours import check_neighbours
from scheduler.doctor.policies import check_policies
from scheduler.doctor.serving import check_cores, check_doors, check_models
from scheduler.tenants import read_tenants

PACKAGES = ("scheduler", "workers", "policies", "edge_agent", "replay", "configs")
"""Our top-level packages; the names are common ones."""

_LEAST_ROOM_BYTES = 100_000_000

_REDIS_S = 2.0
_TELLS_SINCE = 6


def examine(config: Config, file: Path | None = None) -> Iterator[Finding]:
    """Runs all checks on a configuration and its file, and yields their findings as they come."""
    around = Surroundings(config, tuple(distributions()), file=file)
    for check in CHECKS:
        yield from check(around)


# -- Python packages


def check_packages(around: Surroundings) -> Iterator[Finding]:
    """Finds other distributions that own a package of ours: one would shadow the other."""
    owners: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for distribution in around.installed:
        name = _name_of(distribution)
        for package in _top_level(distribution) & owners.keys():
            if name != "laxity":
                owners[package].add(name)
    for package, others in owners.items():
        if others:
            who = ", ".join(sorted(others))
            yield Finding(
                "packages",
                "error",
                f"package {package!r} also belongs to {who}",
                "install laxity into an environment of its own",
            )
    ours = Path(__file__).parents[2]
    for package in PACKAGES:
        place = _place_of(package)
        if place != ours / package:
            yield Finding(
                "packages",
                "error",
                f"import {package} finds {place or 'nothing'}, not {ours / package}",
                "start from another folder, or take that path out of PYTHONPATH",
            )
    if not any(owners.values()):
        yield Finding("packages", "good", "no other distribution owns a package of laxity")


def check_onnxruntime(around: Surroundings) -> Iterator[Finding]:
    """Finds several builds of ONNX Runtime, which overwrite each other's files."""
    builds = sorted(
        f"{name} {distribution.version}"
        for distribution in around.installed
        if re.fullmatch(r"onnxruntime(-.*)?", name := _name_of(distribution))
        and "onnxruntime" in _top_level(distribution)
    )
    if len(builds) > 1:
        yield Finding(
            "onnxruntime",
            "error",
            f"{' and '.join(builds)} own the same module",
            "uninstall all of them, then install laxity[cpu] or laxity[gpu]",
        )
    elif builds:
        yield Finding("onnxruntime", "good", builds[0])
    else:
        yield Finding(
            "onnxruntime", "warning", "not installed", "install laxity[cpu] or laxity[gpu]"
        )


def _name_of(distribution: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()


def _top_level(distribution: Distribution) -> set[str]:
    said = distribution.read_text("top_level.txt")
    if said is not None:
        return set(said.split())
    return {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}


def _place_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


# -- folders


def check_folders(around: Surroundings) -> Iterator[Finding]:
    """Finds folders that can't be written, or whose disk may become too small."""
    more_bytes: dict[int, int] = {}
    on_disk: dict[int, list[Path]] = {}
    written = list(_folders(around.config))
    named = [folder for _, folder, _ in written]
    for key, folder, most_bytes in written:
        closed = [path for path in _closed(folder) if path == folder or path not in named]
        if closed:
            yield Finding(
                "folders",
                "error",
                f"{', '.join(map(str, closed))} ({key}) can't be written by this user",
                f"let the user that runs the box write there, or set another {key}",
            )
            continue
        disk = _nearest(folder).stat().st_dev
        on_disk.setdefault(disk, []).append(folder)
        more = max(0, most_bytes - _size_bytes(folder))
        more_bytes[disk] = more_bytes.get(disk, 0) + more
    for disk, folders in on_disk.items():
        yield _room(folders, more_bytes[disk])


def _folders(config: Config) -> Iterator[tuple[str, Path, int]]:
    """The folders that the box writes: configuration key, path, and most bytes.

    state_dir has no bound: it holds mostly profiles and compiled models.
    """
    journal, durable = config.journal, config.durable
    yield "state_dir", config.state_dir, 0
    if journal.enabled:
        yield "journal.dir", config.journal_dir, journal.max_mb * 10**6
    if durable.enabled:
        yield "durable.dir", config.tasks_dir, durable.disk_bytes


def _room(folders: list[Path], more_bytes: int) -> Finding:
    free_bytes = shutil.disk_usage(_nearest(folders[0])).free
    outer = [folder for folder in folders if not set(folders).intersection(folder.parents)]
    said = f"{', '.join(map(str, outer))}: {free_bytes / 1e6:,.0f} MB are free"
    if free_bytes >= more_bytes + _LEAST_ROOM_BYTES:
        return Finding("folders", "good", said)
    return Finding(
        "folders",
        "error" if free_bytes < _LEAST_ROOM_BYTES else "warning",
        f"{said}, and the journal and durable tasks may take {more_bytes / 1e6:,.0f} MB more",
        "make room, or lower journal.max_mb and durable.max_mb",
    )


def _closed(folder: Path) -> list[Path]:
    """The folder if this user can't write or create it; else its subfolders that can't be written.

    A box that was once started by another user may have left such subfolders.
    """
    if not _is_open(_nearest(folder)):
        return [folder]
    inside = [path for path in sorted(folder.glob("*")) if path.is_dir()]
    return [path for path in inside if not _is_open(path)]


def _is_open(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent, in which it would be created."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def _size_bytes(folder: Path) -> int:
    found = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a running box may have removed it meanwhile
                found += os.lstat(os.path.join(at, name)).st_size
    return found


# -- tokens and certificates


def check_files(around: Surroundings) -> Iterator[Finding]:
    """Finds tokens and certificates that can't be used, expire soon, or are open to others."""
    from edge_agent.checking import file_problems  # slow to import: the runtimes

    problems = [str(error) for error in file_problems(around.config)]
    for problem in problems:
        yield Finding("files", "error", problem, f"fix it: {NO_START}")
    if not problems:
        yield Finding("files", "good", "the configured tokens and certificates can be read")
        yield from _check_shown(around.config)
    yield from check_certificates(around.config)


def _check_shown(config: Config) -> Iterator[Finding]:
    """Warns if the owner's token is shown to boxes: a tenant with scope `peer` can name any box."""
    if config.neighbours is None or config.neighbours.token_file or not config.token_file:
        return
    tenants = () if config.tenants_file is None else read_tenants(config.tenants_file)
    if peers := [tenant.name for tenant in tenants if "peer" in tenant.scopes]:
        yield Finding(
            "files",
            "warning",
            f"neighbours: {', '.join(peers)} may join as a box, and is shown the owner's token",
            "give neighbours.token_file a tenant's token, with the scope peer alone",
        )


# -- Redis


class _About(TypedDict):
    """The fields used of Redis' INFO."""

    redis_version: str
    redis_mode: str
    role: str
    maxmemory: int
    maxmemory_policy: str


def check_cache(around: Surroundings) -> Iterator[Finding]:
    """Finds a Redis that is unreachable, old, or without a memory limit."""
    cache = around.config.cache
    urls = () if cache is None else (cache.url, cache.central_url)
    named = [url for url in urls if url is not None and url != "memory://"]
    if not named:
        what = "off" if cache is None else "in the scheduler's memory only"
        yield Finding("cache", "good", f"the cache is {what}")
    for url in named:
        yield from _check_redis(url)


def _check_redis(url: str) -> Iterator[Finding]:
    import redis  # most boxes need none

    where = without_secrets(url)
    try:
        with redis.Redis.from_url(
            url, socket_timeout=_REDIS_S, socket_connect_timeout=_REDIS_S
        ) as client:
            client.ping()
            began_s = time.perf_counter()
            client.ping()
            took_ms = (time.perf_counter() - began_s) * 1e3
            try:
                about = cast(_About, client.info())
            except redis.exceptions.NoPermissionError:
                told = f"{where} answers in {took_ms:.2f} ms; its limits are unknown"
                yield Finding("cache", "warning", told, "allow the url's user INFO")
                return
    except (redis.RedisError, OSError, ValueError) as error:
        yield Finding(
            "cache",
            "error",
            f"{where} is of no use: {why_away(error)}",
            "start it or correct the cache's url; until then the box serves without it",
        )
        return
    version = str(about["redis_version"])
    yield Finding("cache", "good", f"{where} is Redis {version}; an answer takes {took_ms:.2f} ms")
    if int(version.partition(".")[0]) < _TELLS_SINCE:
        yield Finding(
            "cache",
            "warning",
            f"{where} can't tell boxes what was removed; Redis {_TELLS_SINCE} can",
            f"use Redis {_TELLS_SINCE} or later",
        )
    if about.get("redis_mode") == "cluster":
        told = f"{where}: {IN_CLUSTER}"
        yield Finding("cache", "warning", told, "use a Redis that is not part of a cluster")
    if about["role"] != "master":
        told = f"{where} is a replica: unless it is writable, it takes no new answers"
        yield Finding("cache", "warning", told, "name its master in the cache's url")
    yield from _check_bounds(where, about["maxmemory"], about["maxmemory_policy"])


def _check_bounds(where: str, most_bytes: int, policy: str) -> Iterator[Finding]:
    if not most_bytes:
        yield Finding(
            "cache",
            "warning",
            f"{where} has no maxmemory: it grows until its machine is full",
            "set it, for example: CONFIG SET maxmemory 256mb",
        )
    if policy == "noeviction":
        yield Finding(
            "cache",
            "warning",
            f"{where} has maxmemory-policy noeviction: once full, it takes no new answers",
            "CONFIG SET maxmemory-policy allkeys-lru, or allkeys-lfu; if others keep there what "
            "must not be evicted, volatile-lru",
        )
    if most_bytes and policy != "noeviction":
        yield Finding(
            "cache", "good", f"{where} holds {most_bytes / 1e6:,.0f} MB, then evicts: {policy}"
        )


# -- clouds


def check_clouds(around: Surroundings) -> Iterator[Finding]:
    """Finds servers that do not answer, do not let the box in, or lack its models."""
    if not around.config.cloud:
        yield Finding("cloud", "good", "none is configured")
        return
    from scheduler.doctor.cloud import look_at_clouds  # slow to import: gRPC

    yield from look_at_clouds(around.config)


CHECKS: tuple[Check, ...] = (
    check_packages,
    check_onnxruntime,
    check_folders,
    check_files,
    check_policies,
    check_models,
    check_cores,
    check_doors,
    check_processor,
    check_memory,
    check_open_files,
    check_neighbours,
    check_clouds,
    check_cache,
)

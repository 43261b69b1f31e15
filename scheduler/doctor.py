"""What may be wrong around a box: each check looks, and says what would be right.

A check is a function from what there is to findings; `CHECKS` lists them in the order in which
they are shown.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Literal, TypedDict, cast

from scheduler.config import Config
from scheduler.config_cache import without_secrets

Level = Literal["good", "warning", "error"]

PACKAGES = ("scheduler", "workers", "policies", "edge_agent", "replay", "configs")
"""Our top-level packages; the names are common ones."""

_REDIS_S = 2.0
_TELLS_SINCE = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw.

    Attributes:
        check: The check's name.
        level: Whether it matters.
        message: What there is.
        remedy: What would be right; empty where it is.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks look at.

    Attributes:
        config: The box's configuration.
        installed: The distributions of this environment.
    """

    config: Config
    installed: tuple[Distribution, ...]


Check = Callable[[Surroundings], Iterable[Finding]]


def examine(config: Config) -> Iterator[Finding]:
    """All findings, as they come."""
    around = Surroundings(config, tuple(distributions()))
    for check in CHECKS:
        yield from check(around)


# -- Python packages


def check_packages(around: Surroundings) -> Iterator[Finding]:
    """Another distribution that owns a package of ours would take its place, or lose its own."""
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
                f"package {package!r} belongs to {who} too",
                "install laxity into an environment of its own",
            )
    ours = Path(__file__).parent.parent
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
    """Builds of ONNX Runtime overwrite each other's files."""
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


# -- Redis


class _Memory(TypedDict):
    """The part of Redis' INFO that is looked at."""

    redis_version: str
    maxmemory: int
    maxmemory_policy: str


def check_cache(around: Surroundings) -> Iterator[Finding]:
    """A Redis that is away, old, or without bounds."""
    cache = around.config.cache
    urls = () if cache is None else (cache.url, cache.central_url)
    named = [url for url in urls if url is not None and url != "memory://"]
    if not named:
        what = "off" if cache is None else "in the scheduler's memory alone"
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
            about = cast(_Memory, {**client.info("server"), **client.info("memory")})
    except (redis.RedisError, OSError, ValueError) as error:
        yield Finding(
            "cache",
            "error",
            f"{where} does not answer: {error}",
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
            "CONFIG SET maxmemory-policy allkeys-lru, or allkeys-lfu; where others keep what must "
            "not leave, volatile-lru",
        )
    if most_bytes and policy != "noeviction":
        yield Finding("cache", "good", f"{where} holds {most_bytes / 1e6:,.0f} MB, then {policy}")


CHECKS: tuple[Check, ...] = (check_packages, check_onnxruntime, check_cache)

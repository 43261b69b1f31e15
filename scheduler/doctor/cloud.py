"""Checks whether the box can use its clouds, with small calls that are not inferences."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from statistics import median

from scheduler.config.box import Config
from scheduler.config.cloud import CloudConfig
from scheduler.config.problems import ConfigError
from scheduler.daemon.cloud.dialing import endpoint_of
from scheduler.daemon.cloud.endpoint import Endpoint, Fault, RemoteError
from scheduler.daemon.cloud.mixed_up import mixed_up
from scheduler.doctor.findings import Finding

PATIENCE_S = 3.0
"""Timeout of each call; a slower server would be of no use before a deadline either."""

_LOOKS = 5

_AWAY = "start it, correct its url, or let the box through; until then the box serves without it"
_OTHERWISE = "its own log may tell more"
_REMEDIES = {
    Fault.UNREACHABLE: _AWAY,
    Fault.SILENT: _AWAY,
    Fault.UNKNOWN_CALLER: "token_file, headers or tls of this cloud should hold what it asks for",
}
"""Remedies for the faults that concern a whole server, not a single model."""


def look_at_clouds(config: Config) -> Iterator[Finding]:
    """Checks all clouds at the same time; no inference is sent, so nothing has to be paid."""

    async def look() -> list[list[Finding]]:
        return await asyncio.gather(*(_look_at(each, config) for each in config.cloud))

    for found in asyncio.run(look()):
        yield from found


async def _look_at(cloud: CloudConfig, config: Config) -> list[Finding]:
    where = f"{cloud.name} at {cloud.url}"
    try:
        endpoint = endpoint_of(cloud)
    except ConfigError:
        return []  # reported by the check of files
    try:
        took_ms, dead = await _round_trip_ms(endpoint)
        mute = await _unanswered(endpoint.extensions(PATIENCE_S), Fault.GONE, Fault.INVALID)
        wanted = _wanted(cloud, config)
        missing = await _missing(endpoint, wanted)
    except RemoteError as error:
        verb = "does not let the box in" if error.fault is Fault.UNKNOWN_CALLER else "is of no use"
        remedy = await mixed_up(cloud.url) or _REMEDIES.get(error.fault, _OTHERWISE)
        return [Finding("cloud", "error", f"{where} {verb}: {error}", remedy)]
    finally:
        await endpoint.close()
    there = len(wanted) - len(missing)
    if dead and mute and not there:
        told = f"{where} answers, but not as a server of the Open Inference Protocol: {dead}"
        return [Finding("cloud", "error", told, "correct its url, or the proxy in front of it")]
    told = f"{where} answers in {took_ms:.2f} ms and has {there} of {len(wanted)} models"
    return [Finding("cloud", "good", told), *_lacking(where, cloud, missing, there)]


async def _round_trip_ms(endpoint: Endpoint) -> tuple[float, RemoteError | None]:
    """The median round trip on an open connection, and the error if the server rejects the call."""
    took_ms = []
    for _ in range(1 + _LOOKS):
        began_s = time.perf_counter()
        # A server that does not know this call has answered all the same.
        known = Fault.GONE, Fault.INVALID, Fault.UNKNOWN_CALLER
        dead = await _unanswered(endpoint.live(PATIENCE_S), *known)
        took_ms.append((time.perf_counter() - began_s) * 1e3)
    return median(took_ms[1:]), dead


async def _unanswered(question: Awaitable[object], *but: Fault) -> RemoteError | None:
    """Awaits a call; returns an error with one of these faults, or None if it succeeded."""
    try:
        await question
    except RemoteError as error:
        if error.fault not in but:
            raise
        return error
    return None


def _wanted(cloud: CloudConfig, config: Config) -> dict[str, str]:
    """The models of the box that should run there, with their names there."""
    folders = sorted(path.name for path in config.models.glob("*") if path.is_dir())
    here = folders if cloud.models is None else cloud.models
    named = {model: cloud.remote_name(model) for model in here}
    return {model: name for model, name in named.items() if name is not None}


async def _missing(endpoint: Endpoint, wanted: Mapping[str, str]) -> dict[str, str]:
    """The models that are not there, each with the server's error.

    Raises:
        RemoteError: The error concerns the whole server.
    """
    found = {}
    for model, name in wanted.items():
        try:
            await endpoint.model(name, PATIENCE_S)
        except RemoteError as error:
            if error.fault in _REMEDIES:
                raise
            found[model] = f"{name!r}: {error}"
    return found


def _lacking(
    where: str, cloud: CloudConfig, missing: Mapping[str, str], there: int
) -> Iterator[Finding]:
    """A finding per missing model if the models are configured; else one if all are missing."""
    remedy = "load it there, or give its name there under models"
    told = list(missing.values())
    if cloud.models is None:
        told = told[:1] if not there else []
    for each in told:
        yield Finding("cloud", "warning", f"{where} lacks the model {each}", remedy)

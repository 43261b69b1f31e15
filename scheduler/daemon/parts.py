"""Creates the optional parts of a box, each if its configuration asks for it."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import structlog

from scheduler.address import door_for_others, parse_address
from scheduler.config.box import Config
from scheduler.config.problems import ConfigError, Problem
from scheduler.core.limits import Limits
from scheduler.daemon.driver import Driver
from scheduler.daemon.journal import Journal
from scheduler.daemon.journal_writer import JournalBounds
from scheduler.daemon.neighbours.neighbours import Neighbours, SiteOptions
from scheduler.daemon.shared_bodies import FILES_EACH, SharedBodies
from scheduler.daemon.tracing.traces import Traces
from scheduler.durable.desk import TaskDesk
from scheduler.durable.records import Bounds
from scheduler.ingress.admission import Admission
from scheduler.ingress.task_door import TaskDoor
from scheduler.policy_loading import NamedPolicy
from scheduler.tenants import read_token

if TYPE_CHECKING:
    from scheduler.daemon.cache.front import ResultCache

_OTHER_FILES = 128
"""How many files a scheduler has open besides those of its clients, generously."""

log = structlog.get_logger()


def add_clouds(config: Config, driver: Driver) -> None:
    """Adds the configured servers beyond the box as targets."""
    if not config.cloud:
        return
    from scheduler.daemon.cloud.dialing import cloud_link  # large, and unused on most boxes

    for cloud in config.cloud:
        driver.add_target(cloud.name, cloud_link(cloud, driver, config.state_dir))


def open_cache(config: Config, driver: Driver) -> ResultCache | None:
    """Opens the configured result cache; None if there is none."""
    if config.cache is None:
        return None
    from scheduler.daemon.cache.front import ResultCache  # most boxes have none

    cache = ResultCache(driver, config.cache)
    cache.open()
    return cache


def open_journal(config: Config, policy: NamedPolicy, limits: Limits) -> Journal | None:
    """Starts the configured journal, which writes as soon as its folder can be created."""
    if not config.journal.enabled:
        return None
    bounds = JournalBounds(config.journal.max_mb * 10**6, config.journal.files)
    return Journal(config.journal_dir, policy, limits, bounds)


def shared_bodies(limits: Limits, connections: int) -> SharedBodies | None:
    """Memory for bodies that workers can read where they are; None if the kernel has none.

    It is lent to no more clients than leaves files to open for so many connections.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = files - _OTHER_FILES - connections
    try:
        return SharedBodies(limits.bytes, max(spare // FILES_EACH, files // 16))
    except OSError as error:
        log.warning("large inputs are sent to the workers", reason=str(error))
        return None


def open_tasks(config: Config, driver: Driver, admission: Admission) -> TaskDoor | None:
    """Creates the door for durable tasks if enabled; their store opens in the background."""
    durable = config.durable
    if not durable.enabled:
        return None
    bounds = Bounds(
        durable.max_tasks,
        durable.max_mb * 10**6,
        int(durable.keep_results_s * 1e3),
        durable.disk_bytes,
    )
    desk = TaskDesk(driver, config.tasks_dir, bounds, admission.is_loaded)
    return TaskDoor(desk, admission, bounds, int(durable.max_deadline_s * 1e9))


def open_traces(config: Config) -> Traces | None:
    """Starts to trace requests if that is configured.

    Raises:
        ConfigError: What sends traces is not installed.
    """
    asked = config.tracing
    if asked is None:
        return None
    try:
        metadata.version("opentelemetry-exporter-otlp-proto-http")
    except metadata.PackageNotFoundError as error:
        lacking = f"needs {error.name}: pip install 'laxity[tracing]'"
        raise ConfigError("tracing", [Problem("", lacking)]) from None
    named = config.neighbours.name if config.neighbours is not None else None
    resource = {
        "service.name": "laxity",
        "service.version": metadata.version("laxity"),
        "service.instance.id": named or socket.gethostname(),
        "service.namespace": config.site,
    }
    return Traces(asked.endpoint, resource, asked.share)


def token_for_others(config: Config) -> str | None:
    """The token that this box shows to others of its site; None if it has none.

    Raises:
        ConfigError: It can't be read.
    """
    file = config.shown_token_file
    return None if file is None else read_token(file)


def neighbours_of(
    config: Config,
    driver: Driver,
    addresses: Sequence[str],
    is_loaded: Callable[[str], bool],
) -> Neighbours | None:
    """The links to other boxes; None if they are not configured.

    Raises:
        ConfigError: The token for them can't be read.
    """
    asked = config.neighbours
    if asked is None:
        return None
    options = SiteOptions(
        config.site,
        asked.name,
        asked.join,
        asked.advertise,
        door_for_others(map(parse_address, addresses)),
        token_for_others(config),
        metadata.version("laxity"),
    )
    return Neighbours(driver, options, is_loaded)

"""The configuration of a box: one YAML file; every key has a description and a default."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from scheduler.config.cache import CacheConfig
from scheduler.config.cloud import CloudConfig
from scheduler.config.devices import DeviceConfig, Devices
from scheduler.config.doors import DoorsConfig, TlsConfig
from scheduler.config.energy import EnergyConfig
from scheduler.config.listen import ListenConfig
from scheduler.config.neighbours import NeighboursConfig
from scheduler.config.policy import PolicyConfig, PolicyOrName
from scheduler.config.problems import ConfigError, problems_of, read_yaml, read_yaml_file
from scheduler.config.tracing import TracingConfig
from scheduler.config.types import ConfigPath, Count, Seconds, Section, written_as


def default_state_dir() -> Path:
    """The default folder for profiles, the journal and accepted tasks.

    `LAXITY_STATE_DIR` if it is set, else `/var/lib/laxity` for root and `$XDG_STATE_HOME/laxity`
    for other users (by default `~/.local/state/laxity`), which, unlike a cache, is not cleaned up.

    Source: XDG Base Directory Specification 0.8; a path that isn't absolute is ignored.
    """
    named = os.environ.get("LAXITY_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/laxity")
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not home.is_absolute():
        home = Path.home() / ".local" / "state"
    return home / "laxity"


SiteName = Annotated[
    str, written_as(r"[a-z0-9][a-z0-9-]*", "lower-case letters, digits and dashes, like line-3")
]


class LimitsConfig(Section):
    """The most that the daemon holds, so that a flood of requests is refused, not absorbed."""

    queue_requests: Count = 10_000
    """Requests that are queued or running at once."""

    queue_shapes: Count = 512
    """Different shapes of the inputs of one model that wait at once. They share no batch, and the
    more there are, the longer each decision takes."""

    queue_mb: Count = 256
    """Tensors of the requests that are queued or running, in 10^6 bytes."""

    body_mb: Count = 64
    """Tensors of one request, in 10^6 bytes."""

    header_kb: Annotated[Count, Field(le=10_000)] = 64
    """Header of one message, in 10^3 bytes."""

    connections: Count = 1024
    """Open connections."""

    max_budget_s: Annotated[Seconds, Field(le=86_400)] = 3600.0
    """The longest budget (time to its deadline) that a request may have, in seconds. Work that may
    take longer than a day is a durable task."""


class ProfileConfig(Section):
    """How devices are measured when they first get a model."""

    max_batch: Count = 32
    """The largest batch to measure; 1, 2, 4, ... up to it."""

    seconds: Seconds = 2.0
    """How long one variant is measured with one runtime on one device, over all batch sizes,
    in seconds. No size is begun after twice this time, nor if a batch would take longer than half
    of it (though a second may always pass), so a slow model may need more to be served in large
    batches."""


class JournalConfig(Section):
    """The record that the daemon keeps of every event and decision, without tensors."""

    enabled: bool = True
    """Whether a journal is written."""

    dir: ConfigPath | None = None
    """The folder of the journal's files; without it, journal in state_dir."""

    max_mb: Count = 64
    """The size of all files together, in 10^6 bytes; the oldest are removed. A request takes about
    0.1 KB. Each file begins with a description of all targets and what they offer, and holds at
    least as much again."""

    files: Annotated[int, Field(strict=True, ge=2)] = 8
    """The most files."""


class DurableConfig(Section):
    """Durable tasks, which are kept on disk until they have run, however long that takes."""

    enabled: bool = True
    """Whether durable tasks are accepted."""

    dir: ConfigPath | None = None
    """The folder of their database; without it, tasks in state_dir."""

    max_tasks: Count = 100_000
    """Tasks that are queued or whose result is kept. A queued task takes about 0.5 KB of memory."""

    max_mb: Count = 1_000
    """Their tensors on disk, in 10^6 bytes."""

    keep_results_s: Seconds = 86_400.0
    """How long a result can be fetched, in seconds."""

    max_deadline_s: Seconds = 2_592_000.0
    """The longest deadline that a task may have, in seconds from its submission."""

    @property
    def disk_bytes(self) -> int:
        """The largest size of their database: inputs, results, and metadata."""
        return 2 * self.max_mb * 10**6 + 10**8


class LogConfig(Section):
    """What the daemon writes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe message that is written."""

    format: Literal["auto", "console", "json"] = "auto"
    """auto is console on a terminal and json elsewhere."""


class Config(Section):
    """The configuration of one box. Relative paths start at the folder of the file."""

    site: SiteName = "local"
    """The name of the site, the boxes of one LAN: lower-case letters, digits and dashes."""

    listen: ListenConfig = Field(default_factory=ListenConfig)
    """The addresses of the daemon's doors."""

    doors: DoorsConfig = Field(default_factory=DoorsConfig)
    """How the HTTP and gRPC doors work."""

    models: ConfigPath = Path("models")
    """The folder of the model repository: MODEL/model.yaml beside its variants."""

    devices: Devices = "auto"
    """auto for the devices that the box has, or a list of devices."""

    cloud: tuple[CloudConfig, ...] = ()
    """Servers of the Open Inference Protocol that take requests the box can't finish in time."""

    energy: EnergyConfig = Field(default_factory=EnergyConfig)
    """The cost of the energy that devices draw, where it is measured."""

    policy: PolicyOrName = Field(default_factory=PolicyConfig)
    """The rule that decides which request runs when and where."""

    cache: CacheConfig | None = None
    """The cache of answers to repeated requests; without this section, nothing is cached."""

    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """The most that the daemon holds."""

    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    """How devices are measured when they first get a model."""

    drain_s: Seconds = 10.0
    """How long a stopping daemon lets accepted requests finish, in seconds."""

    state_dir: ConfigPath = Field(default_factory=default_state_dir)
    """The folder for measured profiles and other state of the daemon."""

    journal: JournalConfig = Field(default_factory=JournalConfig)
    """The record that the daemon keeps of every event and decision."""

    tls: TlsConfig | None = None
    """The certificates of addresses that begin with tls://."""

    tenants_file: ConfigPath | None = None
    """A file of tenants and what each may do; docs/security.md has its keys. Readable only by its
    owner, and reloaded when it changes."""

    token_file: ConfigPath | None = None
    """A file with the token that clients must show, or its hash; each line is one that is accepted.
    Readable only by its owner, and reloaded when it changes."""

    durable: DurableConfig = Field(default_factory=DurableConfig)
    """Durable tasks, which are kept on disk until they have run."""

    neighbours: NeighboursConfig | None = None
    """How this box finds the other boxes of its site; without this section it works alone."""

    tracing: TracingConfig | None = None
    """Traces of requests for an OpenTelemetry collector; without this section, none are made."""

    log: LogConfig = Field(default_factory=LogConfig)
    """What the daemon writes to stderr."""

    @field_validator("cloud")
    @classmethod
    def _clouds_are_apart(cls, clouds: tuple[CloudConfig, ...]) -> tuple[CloudConfig, ...]:
        for name, count in Counter(cloud.name for cloud in clouds).items():
            if count > 1:
                raise ValueError(f"{name!r} is listed {count} times; each has its own name")
        return clouds

    @field_validator("tls")
    @classmethod
    def _tls_addresses_have_certificates(
        cls, tls: TlsConfig | None, info: ValidationInfo
    ) -> TlsConfig | None:
        listen = info.data.get("listen")
        wanting = [str(a) for a in listen.all if a.scheme == "tls"] if listen else []
        if tls is None and wanting:
            raise ValueError(
                f"missing, and {', '.join(wanting)} needs it: {{cert: FILE, key: FILE}}"
            )
        return tls

    @field_validator("neighbours")
    @classmethod
    def _neighbours_can_meet(
        cls, neighbours: NeighboursConfig | None, info: ValidationInfo
    ) -> NeighboursConfig | None:
        listen = info.data.get("listen")
        if neighbours is None or listen is None:
            return neighbours
        if neighbours.advertise is None and all(a.scheme == "unix" for a in listen.native):
            raise ValueError(
                "other boxes have to reach this one: add a tcp:// or tls:// address to "
                "listen.native, or say under advertise where a proxy stands"
            )
        if neighbours.token_file is None and info.data.get("token_file") is None:
            raise ValueError(
                "boxes show each other a token: name a file that holds it under token_file, "
                "the same on each box"
            )
        return neighbours

    @field_validator("token_file")
    @classmethod
    def _open_doors_ask_who_is_there(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        listen, tls = info.data.get("listen"), info.data.get("tls")
        if path is None and info.data.get("tenants_file") is None and listen is not None:
            mutual = tls is not None and tls.client_ca is not None
            if reachable := listen.reachable(but="tls" if mutual else ""):
                raise ValueError(
                    f"missing, and other machines can reach {', '.join(reachable)}; name a file "
                    "that holds a token (or tenants_file, or for tls:// addresses tls.client_ca), "
                    "or listen on a loopback address or a unix socket"
                )
        return path

    @property
    def listed_devices(self) -> tuple[DeviceConfig, ...]:
        """The devices of a list; none if `devices` is auto."""
        return () if self.devices == "auto" else self.devices

    @property
    def shown_token_file(self) -> Path | None:
        """The file of the token that this box shows to others of its site; None without one."""
        own = self.neighbours.token_file if self.neighbours is not None else None
        return own or self.token_file

    @property
    def journal_dir(self) -> Path:
        """The folder of the journal."""
        return self.journal.dir or self.state_dir / "journal"

    @property
    def tasks_dir(self) -> Path:
        """The folder of durable tasks."""
        return self.durable.dir or self.state_dir / "tasks"


def load_config(
    path: Path | None, over: Mapping[str, Any] | None = None, text: str | None = None
) -> Config:
    """Reads and validates a configuration.

    Args:
        path: A YAML file; None takes every default, with relative paths starting here.
        over: Keys that override the file's, e.g. from a command line; within a section, only the
            given keys are overridden.
        text: What counts as the file's content; None to read it.

    Raises:
        ConfigError: With every mistake in the file, its line, and what would be accepted.
    """
    data: dict[str, Any] = {}
    node = None
    if path is not None:
        data, node = read_yaml_file(path) if text is None else read_yaml(text, str(path))
    for key, value in (over or {}).items():
        section = data.get(key) or {}
        if not isinstance(value, Mapping):
            data = {**data, key: value}
        elif isinstance(section, Mapping):  # otherwise validation reports what is wrong
            data = {**data, key: {**section, **value}}
    if path is None:
        return _validated(data, None, "defaults", Path.cwd())
    return _validated(data, node, str(path), path.absolute().parent)


def _validated(data: dict[str, Any], node: Any, source: str, base: Path) -> Config:
    try:
        return Config.model_validate(data, context={"base": base})
    except ValidationError as error:
        raise ConfigError(source, problems_of(error, Config, node)) from None


def config_schema() -> dict[str, Any]:
    """The JSON schema of the configuration file, with a description of every key."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

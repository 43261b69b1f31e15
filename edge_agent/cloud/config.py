"""The configuration of the cloud application: one YAML file, separate from a box's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from scheduler.address import Address
from scheduler.config.box import (
    Config,
    DurableConfig,
    JournalConfig,
    LimitsConfig,
    LogConfig,
    ProfileConfig,
    SiteName,
    default_state_dir,
)
from scheduler.config.devices import DeviceConfig
from scheduler.config.doors import DoorsConfig
from scheduler.config.listen import ListenConfig
from scheduler.config.policy import PolicyConfig, PolicyOrName
from scheduler.config.problems import ConfigError, Problem, problems_of, read_yaml_file
from scheduler.config.tracing import TracingConfig
from scheduler.config.types import ConfigPath, Count, DoorAddress, Seconds, Section, as_door

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CloudDevice(DeviceConfig):
    """One processor of each replica."""

    cpus: Amount = 1.0
    """The CPUs that Ray reserves for it. A CPU device runs that many threads, rounded down, unless
    options.threads or cores say otherwise."""

    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The GPUs that Ray reserves for it; Ray chooses which."""


class ReplicasConfig(Section):
    """How many replicas there are, and when that number changes."""

    min: Count = 1
    """The fewest. At least one always runs, because a first replica takes seconds to start."""

    max: Count = 4
    """The most; there are fewer if the cluster has no room for them."""

    target_ongoing_requests: Amount = 16.0
    """The target number of requests per replica, waiting or running. Replicas are added or removed
    to meet it."""

    look_back_s: Annotated[float, Field(strict=True, gt=10, allow_inf_nan=False)] = 15.0
    """The time over which requests are averaged, in seconds; more than the 10 s between Ray Serve's
    reports."""

    upscale_delay_s: Seconds = 5.0
    """How long requests must be above the target before a replica is added, in seconds."""

    downscale_delay_s: Seconds = 300.0
    """How long requests must be below the target before a replica is removed, in seconds."""

    max_ongoing_requests: Count = 1000
    """The most requests in flight at a replica. More requests wait in Ray Serve's queue, which
    ignores deadlines."""

    max_queued_requests: Count = 100
    """The most requests in that queue; Ray Serve answers further ones with 503."""

    cpus: Amount = 1.0
    """The CPUs that Ray reserves for a replica's door and scheduler."""


class RayConfig(Section):
    """The Ray cluster that hosts the application."""

    address: str | None = None
    """The address of a running cluster; without it the application starts its own on loopback."""

    cpus: Count | None = None
    """The CPUs of the application's own cluster; without it all usable ones."""

    object_store_mb: Annotated[int, Field(strict=True, ge=80)] = 256
    """Memory of the application's own cluster for large requests and answers in transit, in 10^6
    bytes."""


class ApplicationConfig(Section):
    """The configuration of the application. Relative paths start at the file's folder."""

    name: SiteName = "laxity"
    """The application's name in Ray Serve."""

    http: DoorAddress = Field(default_factory=lambda: Address("tcp", None, "127.0.0.1", 8800))
    """Open Inference Protocol over HTTP: HOST:PORT. An address that other machines can reach needs
    token_file or tenants_file."""

    models: ConfigPath = Path("models")
    """The folder of the model repository, the same path on every node."""

    devices: tuple[CloudDevice, ...] = Field(
        default_factory=lambda: (CloudDevice(id="cpu:0"),), min_length=1
    )
    """The devices of each replica."""

    replicas: ReplicasConfig = Field(default_factory=ReplicasConfig)
    """How many replicas there are."""

    ray: RayConfig = Field(default_factory=RayConfig)
    """The Ray cluster."""

    policy: PolicyOrName = Field(default_factory=PolicyConfig)
    """The rule that decides which request runs when and where."""

    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """The limits of each replica."""

    doors: DoorsConfig = Field(default_factory=DoorsConfig)
    """How the HTTP door works. Ray Serve decides processes, niceness and idle_s."""

    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    """How devices are measured when they first get a model."""

    drain_s: Seconds = 10.0
    """How long a stopping replica lets its requests finish, in seconds."""

    state_dir: ConfigPath = Field(default_factory=lambda: default_state_dir() / "cloud")
    """The folder for measured profiles, which all replicas share, and for the state of `laxity
    cloud`."""

    tenants_file: ConfigPath | None = None
    """A file of tenants; docs/security.md lists its keys. Their rates apply per replica. The file
    is read again when it changes."""

    token_file: ConfigPath | None = None
    """A file with the token, or its hash, that clients must present; read again when it changes."""

    tracing: TracingConfig | None = None
    """Traces of requests for an OpenTelemetry collector; without this section, none are made."""

    log: LogConfig = Field(default_factory=LogConfig)
    """What replicas log."""

    @field_validator("http")
    @classmethod
    def _http_is_tcp(cls, address: Address) -> Address:
        if address.scheme != "tcp":
            raise ValueError(f"should be HOST:PORT, not {address}; TLS is left to an ingress")
        return address

    @field_validator("devices")
    @classmethod
    def _devices_are_apart(cls, devices: tuple[CloudDevice, ...]) -> tuple[CloudDevice, ...]:
        ids = [device.id for device in devices]
        if len(set(ids)) < len(ids):
            raise ValueError("each device has its own id")
        return devices

    @field_validator("replicas")
    @classmethod
    def _replicas_have_room(cls, replicas: ReplicasConfig, info: ValidationInfo) -> ReplicasConfig:
        if replicas.max < replicas.min:
            raise ValueError(f"max ({replicas.max}) is less than min ({replicas.min})")
        pinned = [device.id for device in info.data.get("devices", ()) if device.cores]
        if replicas.max > 1 and pinned:
            raise ValueError(
                f"max is {replicas.max}, and {', '.join(pinned)} names cores, which the replicas "
                "of one node would share; leave cores out, or set max to 1"
            )
        return replicas

    @field_validator("token_file")
    @classmethod
    def _open_doors_ask_who_is_there(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        http = info.data.get("http")
        if path is None and info.data.get("tenants_file") is None and http and not http.is_local:
            raise ValueError(
                f"missing, and other machines can reach {as_door(http)}; name a file that "
                "holds a token (or tenants_file), or listen on a loopback address"
            )
        return path

    def of_replica(self, socket: Path) -> Config:
        """The configuration for a replica's scheduler, which listens only on a unix socket.

        It keeps no journal: replicas come and go, and so would their files. It has no durable
        tasks, because HTTP has none, and only one of the replicas that share the folder could keep
        them.
        """
        return Config(
            site=self.name,
            listen=ListenConfig(native=(Address("unix", str(socket)),)),
            doors=self.doors,
            models=self.models,
            policy=self.policy,
            limits=self.limits,
            profile=self.profile,
            drain_s=self.drain_s,
            state_dir=self.state_dir,
            journal=JournalConfig(enabled=False),
            durable=DurableConfig(enabled=False),
            tenants_file=self.tenants_file,
            token_file=self.token_file,
            tracing=self.tracing,
            log=self.log,
        )


def is_cloud_config(path: Path) -> bool:
    """Whether more keys of a file are known only to `laxity cloud` than only to a box.

    Raises:
        ConfigError: The file can't be read.
    """
    return _leaning(read_yaml_file(path)[0]) > 0


def _leaning(data: Mapping[str, Any]) -> int:
    """How many more keys are known only to `laxity cloud` than only to a box."""
    of_box, of_cloud = Config.model_fields.keys(), ApplicationConfig.model_fields.keys()
    return len(data.keys() & (of_cloud - of_box)) - len(data.keys() & (of_box - of_cloud))


def load_cloud_config(path: Path) -> ApplicationConfig:
    """Read and validate a configuration.

    Raises:
        ConfigError: The message has every mistake, its line, and what would be accepted.
    """
    data, node = read_yaml_file(path)
    base: dict[str, Any] = {"base": path.absolute().parent}
    try:
        return ApplicationConfig.model_validate(data, context=base)
    except ValidationError as error:
        problems = problems_of(error, ApplicationConfig, node)
        if _leaning(data) < 0:
            told = "looks like a file for `edge_agent --config`, not for `laxity cloud`"
            problems = [Problem("", told), *problems]
        raise ConfigError(str(path), problems) from None

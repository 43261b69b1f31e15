"""The configuration of the application: one YAML file, told apart from a box's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from scheduler.address import Address
from scheduler.config.box import (
    Config,
    DeviceConfig,
    DoorsConfig,
    DurableConfig,
    JournalConfig,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    ProfileConfig,
    SiteName,
    default_state_dir,
)
from scheduler.config.policy import PolicyConfig, PolicyOrName
from scheduler.config.problems import ConfigError, problems_of, read_yaml_file
from scheduler.config.types import ConfigPath, Count, DoorAddress, Seconds, Section, as_door

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CloudDevice(DeviceConfig):
    """One processor of each replica."""

    cpus: Amount = 1.0
    """The CPUs that Ray sets aside for it. A CPU device runs as many threads, whole ones, unless
    options.threads or cores say otherwise."""

    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The GPUs that Ray sets aside for it; which one is Ray's choice."""


class ReplicasConfig(Section):
    """How many replicas there are, and when that changes."""

    min: Count = 1
    """The fewest. There is always one: a first replica takes seconds to come up."""

    max: Count = 4
    """The most; fewer where the cluster has no room for them."""

    target_ongoing_requests: Amount = 16.0
    """Requests per replica, waiting or running, that replicas are added or removed to have."""

    look_back_s: Annotated[float, Field(strict=True, gt=10, allow_inf_nan=False)] = 15.0
    """Over how long requests are averaged; more than the 10 s between Ray Serve's reports."""

    upscale_delay_s: Seconds = 5.0
    """How long there must be more before a replica is added."""

    downscale_delay_s: Seconds = 300.0
    """How long there must be fewer before one is removed."""

    max_ongoing_requests: Count = 1000
    """Requests that a replica is given at once. Those beyond wait in Ray Serve, where nobody looks
    at deadlines."""

    max_queued_requests: Count = 100
    """How many may wait there; the next ones are answered 503 by Ray Serve."""

    cpus: Amount = 1.0
    """The CPUs that Ray sets aside for a replica's door and scheduler."""


class RayConfig(Section):
    """The Ray cluster that hosts the application."""

    address: str | None = None
    """Of a cluster that runs already; without it a cluster of one's own is started, on loopback."""

    cpus: Count | None = None
    """The CPUs that a cluster of one's own may count on; without it all that can be used."""

    object_store_mb: Annotated[int, Field(strict=True, ge=80)] = 256
    """Memory of a cluster of one's own for large requests and answers on their way, in 10^6
    bytes."""


class ApplicationConfig(Section):
    """The configuration of the application. Relative paths start at the folder of the file."""

    name: SiteName = "laxity"
    """The application's name in Ray Serve."""

    http: DoorAddress = Field(default_factory=lambda: Address("tcp", None, "127.0.0.1", 8800))
    """Open Inference Protocol over HTTP: HOST:PORT. What other machines can reach needs token_file
    or tenants_file."""

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
    """What each replica holds at most."""

    doors: DoorsConfig = Field(default_factory=DoorsConfig)
    """How the HTTP door works; processes, niceness and idle_s are Ray Serve's matter."""

    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    """How devices are measured when a model first meets them."""

    drain_s: Seconds = 10.0
    """How long a replica that ends lets its requests finish, in seconds."""

    state_dir: ConfigPath = Field(default_factory=lambda: default_state_dir() / "cloud")
    """The folder for measured profiles, which all replicas share, and for what `laxity cloud`
    remembers."""

    tenants_file: ConfigPath | None = None
    """A file of tenants; docs/security.md has its keys. Their rates count per replica. Read again
    when it changes."""

    token_file: ConfigPath | None = None
    """A file that holds the one token, or its hash, which clients must show; read again when it
    changes."""

    log: LogConfig = Field(default_factory=LogConfig)
    """What replicas write to their logs."""

    @field_validator("http")
    @classmethod
    def _http_is_tcp(cls, address: Address) -> Address:
        if address.scheme != "tcp":
            raise ValueError(f"should be HOST:PORT, not {address}; TLS is an ingress's matter")
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
        """What the scheduler of a replica is told, which listens on a unix socket alone.

        It keeps no journal: replicas come and go, and so would their files. Nor durable tasks: HTTP
        has none, and of the replicas that share the folder one alone could.
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
            log=self.log,
        )


def load_cloud_config(path: Path) -> ApplicationConfig:
    """Reads and validates a configuration.

    Raises:
        ConfigError: With every mistake in the file, its line, and what would be accepted.
    """
    data, node = read_yaml_file(path)
    base: dict[str, Any] = {"base": path.absolute().parent}
    try:
        return ApplicationConfig.model_validate(data, context=base)
    except ValidationError as error:
        raise ConfigError(str(path), problems_of(error, ApplicationConfig, node)) from None

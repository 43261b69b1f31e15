"""The configuration of a box: one YAML file, whose every key has a default and a description."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from scheduler.address import (
    Address,
    AddressError,
    default_socket,
    default_url,
    parse_address,
)
from scheduler.config_problems import ConfigError, Problem, problems_of, read_yaml

__all__ = [
    "Address",
    "AddressError",
    "Config",
    "ConfigError",
    "DeviceConfig",
    "JournalConfig",
    "LimitsConfig",
    "ListenConfig",
    "LogConfig",
    "PolicyConfig",
    "Problem",
    "ProfileConfig",
    "config_schema",
    "default_socket",
    "default_state_dir",
    "default_url",
    "load_config",
    "parse_address",
    "read_token",
]

_SHORTEST_TOKEN = 16


def default_state_dir() -> Path:
    """Where measured profiles are kept unless told otherwise.

    `LAXITY_STATE_DIR` if it is set, else `/var/lib/laxity` for root and `~/.cache/laxity` for
    others.
    """
    named = os.environ.get("LAXITY_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/laxity")
    return Path.home() / ".cache" / "laxity"


def _absolute(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base") or Path.cwd()
    return Path(os.path.normpath(base / path.expanduser()))


def _listening_address(value: object) -> Address:
    address = value if isinstance(value, Address) else parse_address(str(value))
    if address.scheme == "tls":
        raise AddressError(
            f"the daemon listens on unix:// and tcp:// alone; for {str(value)!r} let a TLS proxy "
            "stand in front of a loopback address"
        )
    return address


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str | Address) else value


def _devices_form(value: object) -> str | None:
    if value == "auto":
        return "auto"
    return "list" if isinstance(value, list | tuple) else None


def _written_as(pattern: str, wanted: str) -> AfterValidator:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"{text!r} should be {wanted}")
        return text

    return AfterValidator(check)


ConfigPath = Annotated[Path, AfterValidator(_absolute)]
Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
ListeningAddress = Annotated[
    Address,
    PlainValidator(_listening_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["unix:///run/laxity/laxity.sock"]}),
]
SiteName = Annotated[
    str, _written_as(r"[a-z0-9][a-z0-9-]*", "lower-case letters, digits and dashes, like line-3")
]
DeviceId = Annotated[
    str, _written_as(r"(cpu|gpu|npu):\d+", "a kind and a number, like cpu:0, gpu:0 or npu:1")
]
Runtime = Literal[
    "openvino",
    "onnxruntime",
    "onnxruntime-cuda",
    "onnxruntime-tensorrt",
    "tensorrt",
    "emulated",
]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )


class ListenConfig(_Section):
    """Where the daemon's doors are."""

    native: Annotated[
        tuple[ListeningAddress, ...], BeforeValidator(_one_or_more), Field(min_length=1)
    ] = Field(default_factory=lambda: (default_socket(),))
    """Native protocol: unix:///PATH or tcp://HOST:PORT, or a list of these. TCP that other
    machines can reach needs token_file."""


class DeviceConfig(_Section):
    """One processor of this box that runs batches."""

    id: DeviceId
    """Kind and number: cpu:0, gpu:0, npu:0. OpenVINO's GPU.1 is gpu:1."""

    cores: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()
    """The CPU cores that the device's worker is pinned to; none leaves it unpinned."""

    runtimes: tuple[Runtime, ...] = ()
    """The runtimes that may be used; none allows all that compute on this kind of device.
    emulated answers zeros after a profile's latency and has to be named here."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Settings for the runtimes: which GPU, how much of it (docs/hardware.md), or the latency
    profile of an emulated device."""

    nice: Annotated[int, Field(strict=True, ge=0, le=19)] = 0
    """The priority of the device's worker, from 0, the highest, to 19."""

    memory_mb: Count | None = None
    """The most main memory that the device's worker may use, in 10^6 bytes."""

    model_memory_mb: Count | None = None
    """The most memory for loaded models, in 10^6 bytes; beyond it, the least recently used leave,
    and are loaded again when they are asked for. None keeps all loaded."""

    @property
    def kind(self) -> Literal["cpu", "gpu", "npu"]:
        """What sort of processor it is."""
        return cast(Literal["cpu", "gpu", "npu"], self.id.partition(":")[0])


class PolicyConfig(_Section):
    """The rule that decides which request runs when and where."""

    model_config = ConfigDict(extra="allow")

    name: str = "goodput"
    """A policy's name; the other keys of this section are that policy's options."""

    @property
    def options(self) -> dict[str, Any]:
        """The policy's own options, which the policy itself checks."""
        return dict(self.model_extra or {})


class LimitsConfig(_Section):
    """What the daemon holds at most, so that a flood is refused and not absorbed."""

    queue_requests: Count = 10_000
    """Requests that wait or run at once."""

    queue_mb: Count = 256
    """Tensors of waiting requests, in 10^6 bytes."""

    body_mb: Count = 64
    """Tensors of one request, in 10^6 bytes."""

    header_kb: Count = 64
    """Header of one message, in 10^3 bytes."""

    connections: Count = 1024
    """Open connections."""

    max_budget_s: Seconds = 3600.0
    """The longest budget that a request may have, in seconds."""


class ProfileConfig(_Section):
    """How devices are measured when a model first meets them."""

    max_batch: Count = 32
    """The largest batch to measure; 1, 2, 4, ... up to it."""

    seconds: Seconds = 2.0
    """How long one variant is measured with one runtime on one device, over all batch sizes,
    in seconds."""


class JournalConfig(_Section):
    """What the daemon writes down of every event and decision, without tensors."""

    enabled: bool = True
    """Whether a journal is written."""

    dir: ConfigPath | None = None
    """The folder of the journal's files; without it, journal in state_dir."""

    max_mb: Count = 64
    """All files together, in 10^6 bytes; the oldest are removed. A request takes about 0.1 KB."""

    files: Annotated[int, Field(strict=True, ge=2)] = 8
    """How many files that is at most."""


class LogConfig(_Section):
    """What the daemon writes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe message that is written."""

    format: Literal["auto", "console", "json"] = "auto"
    """auto is console on a terminal and json elsewhere."""


class Config(_Section):
    """The configuration of one box. Relative paths start at the folder of the file."""

    site: SiteName = "local"
    """The name of the site, the boxes of one LAN: lower-case letters, digits and dashes."""

    listen: ListenConfig = Field(default_factory=ListenConfig)
    """Where the daemon's doors are."""

    models: ConfigPath = Path("models")
    """The folder of the model repository: MODEL/model.yaml beside its variants."""

    devices: Annotated[
        Annotated[Literal["auto"], Tag("auto")] | Annotated[tuple[DeviceConfig, ...], Tag("list")],
        Discriminator(
            _devices_form,
            custom_error_type="devices_form",
            custom_error_message="should be auto, or a list such as [{id: 'cpu:0', cores: [1]}]",
        ),
    ] = "auto"
    """auto for what the box has, or a list of devices."""

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    """The rule that decides which request runs when and where."""

    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """What the daemon holds at most."""

    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    """How devices are measured when a model first meets them."""

    drain_s: Seconds = 10.0
    """How long a stopping daemon lets accepted requests finish, in seconds."""

    state_dir: ConfigPath = Field(default_factory=default_state_dir)
    """The folder for measured profiles and the daemon's other memory."""

    journal: JournalConfig = Field(default_factory=JournalConfig)
    """What the daemon writes down of every event and decision."""

    token_file: ConfigPath | None = None
    """A file that holds the token which clients must show; readable by its owner alone."""

    log: LogConfig = Field(default_factory=LogConfig)
    """What the daemon writes to stderr."""

    @field_validator("devices")
    @classmethod
    def _devices_are_apart(
        cls, devices: Literal["auto"] | tuple[DeviceConfig, ...]
    ) -> Literal["auto"] | tuple[DeviceConfig, ...]:
        if devices == "auto":
            return devices
        if not devices:
            raise ValueError("names no device; write auto to use what the box has")
        for id_, count in Counter(device.id for device in devices).items():
            if count > 1:
                raise ValueError(f"{id_!r} is listed {count} times; each device has its own id")
        owners: dict[int, str] = {}
        for device in devices:
            for core in device.cores if device.kind == "cpu" else ():
                owner = owners.setdefault(core, device.id)
                if owner != device.id:
                    raise ValueError(
                        f"core {core} belongs to {owner!r} and to {device.id!r}; CPU devices that "
                        "share a core would spoil each other's measured latency"
                    )
        return devices

    @field_validator("token_file")
    @classmethod
    def _open_doors_have_a_token(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        listen = info.data.get("listen")
        if path is None and listen is not None:
            reachable = [str(address) for address in listen.native if not address.is_local]
            if reachable:
                raise ValueError(
                    f"missing, and other machines can reach {', '.join(reachable)}; name a file "
                    "that holds a token, or listen on a loopback address or a unix socket"
                )
        return path


def load_config(path: Path | None) -> Config:
    """Reads and validates a configuration.

    Args:
        path: A YAML file; None takes every default, with relative paths starting here.

    Raises:
        ConfigError: With every mistake in the file, its line, and what would be accepted.
    """
    if path is None:
        return _validated({}, None, "defaults", Path.cwd())
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem("", f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise ConfigError(str(path), [Problem("", message)]) from None
    data, node = read_yaml(text, str(path))
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


def read_token(path: Path) -> str:
    """Reads the token that clients must show.

    Raises:
        ConfigError: The file can't be read, others than its owner can read it too, or what it
            holds is too short to be a secret.
    """
    try:
        others = path.stat().st_mode & 0o077
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [Problem("token_file", f"can't be read: {error}")]) from None
    if others:
        message = f"others than its owner may use it; run: chmod 600 {path}"
        raise ConfigError(str(path), [Problem("token_file", message)])
    if len(token) < _SHORTEST_TOKEN:
        message = f"holds {len(token)} characters; a token has {_SHORTEST_TOKEN} or more"
        raise ConfigError(str(path), [Problem("token_file", message)])
    return token

"""The configuration of targets beyond the box: servers of the Open Inference Protocol."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from scheduler.config.cache import without_secrets
from scheduler.config.types import (
    ConfigPath,
    Cost,
    Count,
    Positive,
    Seconds,
    Section,
    Unquoted,
    written_as,
)

_SCHEMES = {"grpc": 8001, "grpcs": 443, "http": 80, "https": 443}
"""The schemes of a cloud's URL, each with the port that it means."""

_EXAMPLE = "should be like grpcs://infer.example:443, or with grpc://, http:// or https://"


def _server_url(text: str) -> str:
    parts = urlsplit(text)
    shown = without_secrets(text)
    if parts.username is not None:
        raise ValueError("a URL holds no password; name a file that holds a token in token_file")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{shown!r} has an impossible port; a URL {_EXAMPLE}") from None
    if parts.query or parts.fragment:
        raise ValueError(
            f"a URL ends before ? and #, as {shown!r}; what a server asks for besides "
            "goes into token_file or headers"
        )
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{shown!r} {_EXAMPLE}")
    if parts.path.strip("/") and parts.scheme.startswith("grpc"):
        raise ValueError(f"{shown!r} has a path, which gRPC knows nothing of; a URL {_EXAMPLE}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{host}:{port or _SCHEMES[parts.scheme]}{path}"


ServerUrl = Annotated[str, AfterValidator(_server_url)]
CloudName = Annotated[
    str, written_as(r"[a-z0-9][a-z0-9-]*", "lower-case letters, digits and dashes, like eu-1")
]


class CloudTlsConfig(Section):
    """How a grpcs:// or https:// server is known, and how it knows the box."""

    ca: ConfigPath | None = None
    """Who signs the server's certificate, in PEM; without it, whom the system trusts."""

    cert: ConfigPath | None = None
    """The box's own certificate and the chain above it, in PEM, for servers that ask for one."""

    key: ConfigPath | None = None
    """Its private key, in PEM."""

    @model_validator(mode="after")
    def _a_certificate_has_a_key(self) -> CloudTlsConfig:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together; name both, or none")
        return self


class CloudConfig(Section):
    """A server of the Open Inference Protocol that takes what the box can't do in time."""

    name: CloudName
    """What answers, `status` and the journal call it."""

    url: Annotated[ServerUrl, Unquoted()]
    """Where it is: grpc://HOST:PORT, grpcs://, http:// or https://; the last two may have a path
    before /v2."""

    models: dict[str, str] | tuple[str, ...] | None = None
    """Which models of the box it runs: a list, or what each is called there, by its name here.
    Left out, every model that the server has under the same name with the same tensors. Whoever
    lists a name says that it is the same model there."""

    token_file: ConfigPath | None = None
    """A file that holds the token that the server asks for, readable by its owner alone."""

    encoding: Literal["auto", "binary", "json"] = "auto"
    """How tensors go over HTTP. auto: as bytes where the server lists the extension
    binary_tensor_data, and else as JSON, which is longer and takes the box longer."""

    headers: Annotated[dict[str, SecretStr], Unquoted()] = Field(default_factory=dict)
    """More HTTP headers, or gRPC metadata, of every call. Their values are shown nowhere."""

    tls: CloudTlsConfig = Field(default_factory=CloudTlsConfig)
    """For grpcs:// and https://."""

    max_concurrency: Count = 32
    """The most batches that are there at once; the limit finds its own way below it."""

    max_batch: Count = 8
    """The most items in one batch; a model's own max_batch holds as well."""

    cost_per_request: Cost = 0.0
    """What each request costs, in any unit of money."""

    cost_per_s: Cost = 0.0
    """What each second of a batch there costs, in the same unit."""

    budget_per_hour: Cost | None = None
    """The most that is spent in any hour, in the same unit; None is no limit."""

    budget_per_day: Cost | None = None
    """The same in any 24 hours."""

    expected_ms: Cost | None = None
    """How long one request is expected to take there, without the way. With it nothing is sent
    there to find out when the box starts."""

    bandwidth_mbps: Positive | None = None
    """What the way carries, in 10^6 bits per second, until it is measured."""

    probe_s: Seconds = 1.0
    """How often the way is looked at unless small messages tell it, in seconds; such a look is no
    inference and costs nothing."""

    timeout_s: Seconds = 10.0
    """How long the server has for anything but inferences with a deadline, in seconds."""

    @property
    def is_secure(self) -> bool:
        """Whether what goes there is encrypted."""
        return self.url.startswith(("grpcs://", "https://"))

    @property
    def budgets(self) -> dict[int, float]:
        """The budgets, by the seconds that each is for."""
        named = {3_600: self.budget_per_hour, 86_400: self.budget_per_day}
        return {seconds: limit for seconds, limit in named.items() if limit is not None}

    def remote_name(self, model: str) -> str | None:
        """What a model of the box is called there; None where it is not to run there."""
        if self.models is None:
            return model
        if isinstance(self.models, dict):
            return self.models.get(model)
        return model if model in self.models else None

    @field_validator("token_file")
    @classmethod
    def _tokens_are_not_for_everybody(cls, path: Any, info: Any) -> Any:
        url = info.data.get("url", "")
        if path is not None and url.startswith(("grpc:", "http:")) and not _is_loopback(url):
            secure = url.replace("://", "s://", 1)
            raise ValueError(
                f"the token would go to {url} for everybody on the way to read; use {secure}"
            )
        return path

    @field_validator("headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, SecretStr], info: Any) -> Any:
        is_grpc = info.data.get("url", "").startswith("grpc")
        for name, value in headers.items():
            check_header(name, value.get_secret_value(), is_grpc)
        return headers

    @model_validator(mode="after")
    def _budgets_are_of_costs(self) -> CloudConfig:
        if self.budgets and not self.cost_per_request and not self.cost_per_s:
            raise ValueError("a budget needs cost_per_request or cost_per_s, which it limits")
        return self


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, which a name of a field is."""

_GRPC_NAME = re.compile(r"(?!grpc-|GRPC-)[0-9A-Za-z_.-]+(?<!-bin)")
"""Of text; see gRPC's protocol over HTTP/2 under Custom-Metadata. Sent in lower case."""


def check_header(name: str, value: str, is_grpc: bool) -> None:
    """Nothing, where a header can be sent.

    Raises:
        ValueError: It can't; the message does not hold the value.
    """
    if (_GRPC_NAME if is_grpc else _NAME).fullmatch(name) is None:
        kind = "metadata of gRPC" if is_grpc else "an HTTP header"
        raise ValueError(f"{name!r} can't be the name of {kind}, such as x-api-key")
    if not value.isprintable() or (is_grpc and not value.isascii()):
        wanted = "one line of ASCII" if is_grpc else "one line of text"
        raise ValueError(f"the value of {name!r} should be {wanted}")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

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
"""The schemes of a cloud's URL, each with its default port."""

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
            f"a URL ends before ? and #, as {shown!r}; what else a server "
            "needs goes into token_file or headers"
        )
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{shown!r} {_EXAMPLE}")
    if parts.path.strip("/") and parts.scheme.startswith("grpc"):
        raise ValueError(f"{shown!r} has a path, which gRPC does not support; a URL {_EXAMPLE}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{host}:{port or _SCHEMES[parts.scheme]}{path}"


ServerUrl = Annotated[str, AfterValidator(_server_url)]
CloudName = Annotated[
    str, written_as(r"[a-z0-9][a-z0-9-]*", "lower-case letters, digits and dashes, like eu-1")
]


class CloudTlsConfig(Section):
    """How the box and a secure server authenticate each other; reloaded for new connections."""

    ca: ConfigPath | None = None
    """The CA that signs the server's certificate, in PEM; by default, those that the system
    trusts."""

    cert: ConfigPath | None = None
    """The box's own certificate and its chain, in PEM, for servers that ask for one."""

    key: ConfigPath | None = None
    """Its private key, in PEM."""

    @model_validator(mode="after")
    def _a_certificate_has_a_key(self) -> CloudTlsConfig:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together; name both, or none")
        return self


class CloudConfig(Section):
    """A server of the Open Inference Protocol that takes requests the box can't finish in time."""

    name: CloudName
    """Its name in answers, `status` and the journal."""

    url: Annotated[ServerUrl, Unquoted()]
    """Its address: grpc://HOST:PORT, grpcs://, http:// or https://; the last two may have a path
    before /v2. Without a port it is 8001, 443, 80 or 443."""

    models: dict[str, str] | tuple[str, ...] | None = None
    """Which of the box's models it runs: a list, or a mapping from each name here to the name
    there. By default, every model that the server has under the same name with the same tensors.
    Listing a name asserts that it is the same model there."""

    token_file: ConfigPath | None = None
    """A file with the token that the server requires, readable only by its owner."""

    encoding: Literal["auto", "binary", "json"] = "auto"
    """How tensors are sent over HTTP. auto: as bytes if the server lists the extension
    binary_tensor_data, otherwise as JSON, which is longer and takes the box more time."""

    headers: Annotated[dict[str, SecretStr], Unquoted()] = Field(default_factory=dict)
    """Further HTTP headers, or gRPC metadata, for every call. Their values are never shown."""

    tls: CloudTlsConfig = Field(default_factory=CloudTlsConfig)
    """TLS settings for grpcs:// and https://."""

    max_concurrency: Count = 32
    """The most batches in flight there; the adaptive limit stays at or below it."""

    max_batch: Count = 8
    """The most items in one batch; a model's own max_batch applies too."""

    cost_per_request: Cost = 0.0
    """What each request costs, in any unit of money."""

    cost_per_s: Cost = 0.0
    """What each second of a batch there costs, in the same unit."""

    budget_per_hour: Cost | None = None
    """The most that may be spent in any hour, in the same unit; None for no limit."""

    budget_per_day: Cost | None = None
    """The same for any 24 hours."""

    expected_ms: Cost | None = None
    """How long one request is expected to take there, in milliseconds, without the network. If
    given, no requests are sent to measure it when the box starts."""

    bandwidth_mbps: Positive | None = None
    """The bandwidth of the link to it, in 10^6 bits per second, until it is measured."""

    probe_s: Seconds = 1.0
    """How often the link is probed if no small messages measure it, in seconds; a probe is no
    inference and costs nothing."""

    timeout_s: Seconds = 10.0
    """The timeout for calls other than inferences with a deadline, in seconds."""

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.startswith(("grpcs://", "https://"))

    @property
    def budgets(self) -> dict[int, float]:
        """The budgets, by their period in seconds."""
        named = {3_600: self.budget_per_hour, 86_400: self.budget_per_day}
        return {seconds: limit for seconds, limit in named.items() if limit is not None}

    def remote_name(self, model: str) -> str | None:
        """The name there of one of the box's models; None if it must not run there."""
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
            raise ValueError(f"the token would go to {url} unencrypted; use {secure}")
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
"""A field name, which is a token of RFC 9110."""

_GRPC_NAME = re.compile(r"(?!grpc-|GRPC-)[0-9A-Za-z_.-]+(?<!-bin)")
"""A name of text metadata; see Custom-Metadata in gRPC's protocol over HTTP/2. Sent in lower
case."""


def check_header(name: str, value: str, is_grpc: bool) -> None:
    """Checks that a header can be sent.

    Raises:
        ValueError: It can't; the message does not contain the value.
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

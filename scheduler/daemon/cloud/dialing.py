"""Makes endpoints from the configuration of a cloud: addresses, certificates, tokens."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import aiohttp
import grpc

from scheduler.config.cloud import CloudConfig
from scheduler.config.problems import ConfigError, Problem
from scheduler.daemon.cloud.endpoint import Endpoint
from scheduler.daemon.cloud.grpc_endpoint import GrpcEndpoint
from scheduler.daemon.cloud.http_endpoint import HttpEndpoint
from scheduler.daemon.cloud.latencies import LatencyFile
from scheduler.daemon.cloud.link import CloudLink
from scheduler.daemon.driver import Driver
from scheduler.daemon.ways.purse import Purse
from scheduler.files import stamp_of
from scheduler.tenants import read_secret

ANSWER_BYTES = 256 << 20
"""The largest answer that is accepted from a server."""

T = TypeVar("T")


def cloud_link(config: CloudConfig, driver: Driver, state_dir: Path) -> CloudLink:
    """The link to a configured server.

    Args:
        config: The server's address, credentials and budgets.
        driver: The driver that gets it as a target.
        state_dir: Where its spending and its latencies are kept.

    Raises:
        ConfigError: A token or certificate can't be read.
    """
    folder = state_dir / "cloud"
    return CloudLink(
        config,
        endpoint_of(config),
        driver.catalog,
        Purse(config.budgets, folder / f"{config.name}-spent.json", time.time),
        LatencyFile(folder / f"{config.name}-latency.json", config.url),
        driver,
        partial(headers_of, config),
    )


def endpoint_of(config: CloudConfig) -> Endpoint:
    """The endpoint of a configured server; must be called on the event loop that will use it.

    Args:
        config: The server's address and credentials.

    Raises:
        ConfigError: A token or certificate can't be read.
    """
    headers = headers_of(config)
    if config.url.startswith("http"):
        context = _Certificates(config, ssl_context) if config.is_secure else None

        def session() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=context.now() if context else True),
                skip_auto_headers=["Accept-Encoding"],
            )

        binary = {"auto": None, "binary": True, "json": False}[config.encoding]
        return HttpEndpoint(session, config.url, headers, ANSWER_BYTES, binary)
    address = config.url.partition("://")[2]
    credentials = _Certificates(config, _credentials) if config.is_secure else None

    def channel(options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options)
        return grpc.aio.secure_channel(address, credentials.now(), options)

    return GrpcEndpoint(channel, headers, ANSWER_BYTES)


class _Certificates(Generic[T]):
    """The certificates for connections to a server, as they are in their files when it is dialled.

    Raises:
        ConfigError: A file can't be read, or is not a certificate or key.
    """

    def __init__(self, config: CloudConfig, read: Callable[[CloudConfig], T]) -> None:
        self._config, self._read = config, read
        self._stamps = self._stamped()
        # Read at once, so that mistakes are reported when the box starts.
        self._known = read(config)

    def now(self) -> T:
        """What they are; while the files can't be used, what they held before."""
        stamps = self._stamped()
        if stamps != self._stamps:  # reading takes milliseconds, and a lost server is dialled often
            self._stamps = stamps
            with suppress(ConfigError, OSError):  # such as a certificate whose key is yet to come
                self._known = self._read(self._config)
        return self._known

    def _stamped(self) -> list[tuple[int, ...]]:
        tls = self._config.tls
        return [stamp_of(path) for path in (tls.ca, tls.cert, tls.key) if path is not None]


def headers_of(config: CloudConfig) -> dict[str, str]:
    """The headers of every call, with the token that is in its file now.

    Raises:
        ConfigError: The token can't be read.
    """
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    if config.token_file is not None:
        headers["authorization"] = f"Bearer {token_to_show(config.token_file)}"
    return headers


def token_to_show(path: Path) -> str:
    """The token to present to a server.

    Raises:
        ConfigError: The file can't be read, or holds something else.
    """
    token = read_secret(path, "token_file").strip()
    if not token or not token.isprintable():
        told = "should hold a token, in one line"
        raise ConfigError(str(path), [Problem("token_file", told)])
    return token


def ssl_context(config: CloudConfig) -> ssl.SSLContext:
    """The TLS context for connections to a server.

    Raises:
        ConfigError: A file can't be read, or is not a certificate or key.
    """
    tls = config.tls
    for path in (tls.ca, tls.cert, tls.key):
        try:
            _ = _read(path)  # OpenSSL does not say which file is missing
        except OSError as error:
            told = f"can't be read: {error.strerror}"
            raise ConfigError(f"cloud {config.name!r}", [Problem(f"tls: {path}", told)]) from None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            # Without a password OpenSSL would prompt for one.
            context.load_cert_chain(tls.cert, tls.key, password="")
    except (OSError, ssl.SSLError) as error:
        message = f"the certificates can't be used: {error}"
        raise ConfigError(f"cloud {config.name!r}", [Problem("tls", message)]) from None
    return context


def _credentials(config: CloudConfig) -> grpc.ChannelCredentials:
    ssl_context(config)  # says what is wrong with the files, which gRPC does not
    tls = config.tls
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()

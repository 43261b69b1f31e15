"""Makes endpoints from the configuration of a cloud: addresses, certificates, tokens."""

from __future__ import annotations

import ssl
import time
from functools import partial
from pathlib import Path

import aiohttp
import grpc

from scheduler.config.cloud import CloudConfig, CloudTlsConfig
from scheduler.config.problems import ConfigError, Problem
from scheduler.daemon.cloud.endpoint import Endpoint
from scheduler.daemon.cloud.grpc_endpoint import GrpcEndpoint
from scheduler.daemon.cloud.http_endpoint import HttpEndpoint
from scheduler.daemon.cloud.latencies import LatencyFile
from scheduler.daemon.cloud.link import CloudLink
from scheduler.daemon.driver import Driver
from scheduler.daemon.ways.purse import Purse
from scheduler.tenants import read_secret

ANSWER_BYTES = 256 << 20
"""The largest answer that is accepted from a server."""


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
        endpoint_of(config, ANSWER_BYTES),
        driver.catalog,
        Purse(config.budgets, folder / f"{config.name}-spent.json", time.time),
        LatencyFile(folder / f"{config.name}-latency.json", config.url),
        driver,
        partial(headers_of, config),
    )


def endpoint_of(config: CloudConfig, answer_bytes: int) -> Endpoint:
    """The endpoint of a configured server; must be called on the event loop that will use it.

    Args:
        config: The server's address and credentials.
        answer_bytes: The largest answer that is accepted.

    Raises:
        ConfigError: A token or certificate can't be read.
    """
    headers = headers_of(config)
    # Read here once, so that mistakes are reported when the box starts.
    context = ssl_context(config) if config.is_secure else None
    if config.url.startswith("http"):

        def session() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=context or True),
                skip_auto_headers=["Accept-Encoding"],
            )

        binary = {"auto": None, "binary": True, "json": False}[config.encoding]
        return HttpEndpoint(session, config.url, headers, answer_bytes, binary)
    address = config.url.partition("://")[2]
    if context is None:
        return GrpcEndpoint(
            lambda options: grpc.aio.insecure_channel(address, options), headers, answer_bytes
        )
    credentials = _credentials(config.tls)
    return GrpcEndpoint(
        lambda options: grpc.aio.secure_channel(address, credentials, options),
        headers,
        answer_bytes,
    )


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


def _credentials(tls: CloudTlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()

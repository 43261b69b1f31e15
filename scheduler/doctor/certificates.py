"""Checks the certificates and keys of a box, and those that it and `laxity` show to others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from cryptography.x509 import load_pem_x509_certificates

from scheduler.client.tls import Tls, TlsFailure
from scheduler.config.box import Config
from scheduler.doctor.findings import Finding, Level

_RENEW_WITHIN = timedelta(days=30)

_FILES = "LAXITY_CA, LAXITY_CERT and LAXITY_KEY"


class _Named(NamedTuple):
    """A file of certificates, and who names it.

    Attributes:
        path: The file.
        is_chain: Whether it is a chain; otherwise any certificate in it is trusted.
        said: The file, for people.
    """

    path: Path
    is_chain: bool
    said: str


def check_certificates(config: Config) -> Iterator[Finding]:
    """Finds certificates that expire soon, keys open to others, and files of clients to mend.

    Files of the configuration that can't be used are not reported: `check_files` does that.
    """
    for key in dict.fromkeys((*_keys(config), *_own_keys())):
        if os.path.exists(key) and key.stat().st_mode & 0o007:
            yield Finding(
                "files",
                "warning",
                f"{key}: everybody on this machine can use the private key",
                f"chmod 600 {key}, or 640 for a group",
            )
    for named in _certificates(config):
        yield from _check_validity(named)
    if not (own := list(_own_certificates())):
        return
    try:
        Tls().context()
    except TlsFailure as failure:
        remedy = f"correct {_FILES}; laxity and, if its environment has them, the agent go by them"
        yield Finding("files", "error", str(failure), remedy)
    for named in own:
        yield from _check_validity(named)


def _keys(config: Config) -> Iterator[Path]:
    if config.tls is not None:
        yield config.tls.key
    yield from (cloud.tls.key for cloud in config.cloud if cloud.tls.key is not None)


def _certificates(config: Config) -> Iterator[_Named]:
    named: list[tuple[Path | None, bool]] = []
    if config.tls is not None:
        named += [(config.tls.cert, True), (config.tls.client_ca, False)]
    for cloud in config.cloud:
        named += [(cloud.tls.cert, True), (cloud.tls.ca, False)]
    for path, is_chain in named:
        if path is not None:
            yield _Named(path, is_chain, str(path))


def _own_keys() -> Iterator[Path]:
    if certificate := os.environ.get("LAXITY_CERT"):
        yield Path(os.environ.get("LAXITY_KEY") or certificate)


def _own_certificates() -> Iterator[_Named]:
    """What clients that are started in this environment trust and show."""
    for variable, is_chain in (("LAXITY_CA", False), ("LAXITY_CERT", True)):
        if path := os.environ.get(variable):
            yield _Named(Path(path), is_chain, f"{variable}={path}")


def _check_validity(named: _Named) -> Iterator[Finding]:
    try:
        found = load_pem_x509_certificates(named.path.read_bytes())
    except (OSError, ValueError):
        return  # reported already, as it can't be used
    now = datetime.now(timezone.utc)
    if named.is_chain:  # valid while all are
        since = max(each.not_valid_before_utc for each in found)
        until = min(each.not_valid_after_utc for each in found)
    else:  # and trusted ones while one is
        last = max(found, key=lambda each: each.not_valid_after_utc)
        since, until = last.not_valid_before_utc, last.not_valid_after_utc
    if since > now:
        told = (
            f"{named.said}: valid from {since:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}"
        )
        yield Finding("files", "error", told, "set the clock of the box, or wait")
    elif until < now + _RENEW_WITHIN:
        level: Level = "error" if until < now else "warning"
        verb = "expired" if until < now else "expires"
        told = f"{named.said}: {verb} on {until:%Y-%m-%d %H:%M} UTC"
        yield Finding("files", level, told, "renew it")
    else:
        yield Finding("files", "good", f"{named.said}: valid until {until:%Y-%m-%d}")

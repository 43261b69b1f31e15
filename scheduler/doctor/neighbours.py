"""Checks whether a box could join its site: the boxes that it calls, and what it shows to them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cryptography.x509 import (
    Certificate,
    DNSName,
    ExtensionNotFound,
    IPAddress,
    SubjectAlternativeName,
    load_pem_x509_certificates,
)

from scheduler import wire
from scheduler.address import Address, door_for_others, plainly
from scheduler.client.asking import ask
from scheduler.client.connection import Connection
from scheduler.client.tls import TlsFailure
from scheduler.config.box import Config
from scheduler.config.problems import ConfigError
from scheduler.doctor.findings import Finding, Surroundings
from scheduler.errors import Forbidden, LaxityError, ProtocolError, Unauthorized
from scheduler.tenants import read_token

PATIENCE_S = 3.0
"""Timeout of each box, as when one joins."""

_AWAY = "start the box there, correct the address, or let this one through; it starts without it"
_CORRECT = "correct it under neighbours.join"
_FILES = (
    "the agent goes by LAXITY_CA, LAXITY_CERT and LAXITY_KEY in its own environment; set them here "
    "as well to see what it sees"
)


def check_neighbours(around: Surroundings) -> Iterator[Finding]:
    """Finds boxes to join that are away or refuse this one, and a certificate they'd not accept."""
    config = around.config
    if config.neighbours is None:
        yield Finding("neighbours", "good", "none is configured")
        return
    yield from asyncio.run(_call_all(config, config.neighbours.join))
    yield from _certified(config)


# -- the boxes to join


async def _call_all(config: Config, join: Sequence[Address]) -> list[Finding]:
    if not join:
        return [Finding("neighbours", "good", "none is to be joined: others may join this box")]
    try:
        file = config.shown_token_file
        token = None if file is None else read_token(file)
    except ConfigError:
        return []  # reported by the check of files
    called = [_call(address, token, config) for address in join]
    return [finding for finding in await asyncio.gather(*called) if finding is not None]


async def _call(address: Address, token: str | None, config: Config) -> Finding | None:
    """What came of a call that changes nothing there; None if it is this box, which is not up."""
    try:
        took_ms, site = await asyncio.wait_for(_asked(address, token), PATIENCE_S)
    except Unauthorized:
        remedy = "neighbours.token_file, or else token_file, should hold a token that it accepts"
        return _refused(address, "refuses the token of this box", remedy)
    except Forbidden as error:
        remedy = "the token needs the scope peer there, and the box a section neighbours"
        return _refused(address, f"lets no box in with this token: {error}", remedy)
    except ProtocolError as error:
        remedy = "upgrade the older one of both" if "version" in str(error) else _CORRECT
        return _refused(address, f"can't be spoken to: {error}", remedy)
    except TlsFailure as error:
        told = str(error)
        remedy = _FILES if "LAXITY_" in told else "" if "certificate" in told else _CORRECT
        return _refused(address, f"can't be spoken to: {told}", remedy)
    except (LaxityError, OSError, asyncio.TimeoutError) as error:
        if _is_own(address, config):
            return None
        why = plainly(error) or f"no answer within {PATIENCE_S:g} s"
        return Finding("neighbours", "warning", f"{address} can't be joined now: {why}", _AWAY)
    if site != config.site:
        told = f"belongs to the site {site!r}, not {config.site!r}"
        return _refused(address, told, "give both the same site, or join another box")
    return Finding("neighbours", "good", f"{address} answers in {took_ms:.2f} ms and lets it join")


def _refused(address: Address, told: str, remedy: str) -> Finding:
    return Finding("neighbours", "error", f"{address} {told}", remedy)


async def _asked(address: Address, token: str | None) -> tuple[float, str]:
    """The round trip of a box's ping there, and the site; it tells nobody that a box has called."""
    asked: list[tuple[float, Connection]] = []

    def ping(connection: Connection) -> wire.Header:
        asked.append((time.perf_counter(), connection))
        return {"t": "ping"}

    try:
        await ask(address, token, ping)
        ((began_s, connection),) = asked
        return (time.perf_counter() - began_s) * 1e3, connection.site
    finally:
        for _, connection in asked:  # an orderly end of TLS may outlast the loop
            connection.fail(ConnectionAbortedError())


def _is_own(address: Address, config: Config) -> bool:
    """Whether an address to join is that of this box itself, as where all have the same list."""
    if address.port not in [door.port for door in config.listen.native]:
        return False
    try:
        with socket.socket(socket.AF_INET6 if ":" in str(address.host) else socket.AF_INET) as own:
            own.bind((address.host, 0))  # only an address of this machine can be bound
        return True
    except OSError:
        return False


# -- the certificate that other boxes are shown


def _certified(config: Config) -> Iterator[Finding]:
    """Looks for the address at which others see this box in its certificate."""
    assert config.neighbours is not None
    own = config.neighbours.advertise
    seen = own or door_for_others(config.listen.native)
    if config.tls is None or seen is None or seen.scheme != "tls":
        return  # none is shown, or that of a proxy
    try:
        certificate = load_pem_x509_certificates(config.tls.cert.read_bytes())[0]
    except (OSError, ValueError, IndexError):
        return  # reported by the check of files
    hosts = [str(own.host)] if own is not None else _hosts_of(str(seen.host))
    covered = [host for host in hosts if _covers(certificate, host)]
    where = f"{config.tls.cert}: "
    if covered:
        yield Finding("neighbours", "good", f"{where}is for {', '.join(covered)}")
        return
    named = ", ".join(map(str, _names(certificate))) or "nobody"
    told = f"{where}is for {named}, and other boxes see this one at {' or '.join(hosts)}"
    remedy = "issue it for that address too, or set neighbours.advertise to tls://NAME:PORT"
    yield Finding("neighbours", "error", told, f"{remedy} with a name that it is for")


def _hosts_of(host: str) -> list[str]:
    """The addresses at which other machines may see a door that listens at a host."""
    try:
        listening = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if not listening.is_unspecified:
        return [host]
    import psutil

    found = [each.address for of in psutil.net_if_addrs().values() for each in of if _is_ip(each)]
    able = [each for each in found if not ipaddress.ip_address(each).is_loopback]
    return [each for each in able if not ipaddress.ip_address(each).is_link_local] or [host]


def _is_ip(address: Any) -> bool:
    return address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address


def _names(certificate: Certificate) -> list[object]:
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return []
    return [*names.get_values_for_type(DNSName), *names.get_values_for_type(IPAddress)]


def _covers(certificate: Certificate, host: str) -> bool:
    """Whether a certificate is for a host, as a TLS client sees it."""
    try:
        return ipaddress.ip_address(host) in _names(certificate)
    except ValueError:
        pass
    names = [name.lower() for name in _names(certificate) if isinstance(name, str)]
    _, _, domain = host.lower().partition(".")
    return host.lower() in names or (bool(domain) and f"*.{domain}" in names)

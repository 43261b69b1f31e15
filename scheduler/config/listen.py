"""The configuration of the doors' addresses."""

from __future__ import annotations

import ipaddress
from itertools import combinations
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from scheduler.address import Address, default_socket
from scheduler.config.types import DoorAddress, ListeningAddress, Section, as_door, one_or_more


class ListenConfig(Section):
    """The addresses of the daemon's doors."""

    native: Annotated[
        tuple[ListeningAddress, ...], BeforeValidator(one_or_more), Field(min_length=1)
    ] = Field(default_factory=lambda: (default_socket(),))
    """Native protocol: unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT, or a list of these. An
    address that other machines can reach requires token_file, tenants_file, or tls.client_ca."""

    http: Annotated[tuple[DoorAddress, ...], BeforeValidator(one_or_more)] = ()
    """Open Inference Protocol over HTTP: HOST:PORT, tls://HOST:PORT or unix:///PATH, or a list of
    these; an empty list leaves that door closed. An address that other machines can reach requires
    token_file, tenants_file, or tls.client_ca."""

    grpc: Annotated[tuple[DoorAddress, ...], BeforeValidator(one_or_more)] = ()
    """The same over gRPC."""

    @property
    def all(self) -> tuple[Address, ...]:
        """The addresses of every door."""
        return self.native + self.http + self.grpc

    def reachable(self, but: str) -> list[str]:
        """The addresses, as written, that other machines reach, except those of scheme `but`."""
        native = [str(each) for each in self.native if not each.is_local and each.scheme != but]
        others = (*self.http, *self.grpc)
        return native + [as_door(e) for e in others if not e.is_local and e.scheme != but]

    @model_validator(mode="after")
    def _addresses_are_apart(self) -> ListenConfig:
        doors = {"native": self.native, "http": self.http, "grpc": self.grpc}
        written = [(f"{kind} {as_door(each)}", each) for kind in doors for each in doors[kind]]
        for (one, first), (other, second) in combinations(written, 2):
            if _is_taken(first, second):
                raise ValueError(f"{one} collides with {other}; each has its own port or path")
        return self


def _is_taken(one: Address, other: Address) -> bool:
    if one.scheme == "unix" or other.scheme == "unix":
        return one.path == other.path
    hosts = str(one.host), str(other.host)
    same = hosts[0] == hosts[1] or _covers(*hosts) or _covers(*reversed(hosts))
    return same and one.port == other.port != 0


def _covers(every: str, host: str) -> bool:
    """Whether `every` is a wildcard address and `host` is of the same IP version."""
    try:
        all_, one = ipaddress.ip_address(every), ipaddress.ip_address(host)
    except ValueError:  # a host name, which is not resolved here
        return False
    return all_.is_unspecified and all_.version == one.version

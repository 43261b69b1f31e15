"""The configuration of a box that shares work with others."""

from __future__ import annotations

import re
import socket
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from scheduler.address import Address, AddressError, parse_address
from scheduler.config.types import ConfigPath, Section, one_or_more, written_as


def peer_address(value: object) -> Address:
    """The address of another box, from HOST:PORT or an address.

    Raises:
        AddressError: It is neither.
    """
    if isinstance(value, Address):
        return value
    text = str(value)
    address = parse_address(text if "://" in text else f"tcp://{text}")
    if address.scheme == "unix" or not address.port:
        raise AddressError(f"{text!r} is not where another machine listens: HOST:PORT or tls://…")
    return address


PeerAddress = Annotated[
    Address,
    PlainValidator(peer_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.7:8702", "tls://box-a.lan:8743"]}),
]
BOX_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
BoxName = Annotated[str, written_as(BOX_NAME, "lower-case letters, digits and dashes, like box-a")]


def default_name() -> str:
    """The host's name, reduced to characters that a box name may have."""
    first = socket.gethostname().partition(".")[0].lower()
    return re.sub(r"[^a-z0-9-]+", "-", first).strip("-")[:63] or "box"


class NeighboursConfig(Section):
    """How this box finds the other boxes of its site."""

    name: BoxName = Field(default_factory=default_name)
    """The name of this box in the site; each box needs its own. Default: the host's name."""

    join: Annotated[tuple[PeerAddress, ...], BeforeValidator(one_or_more)] = ()
    """The native doors of some other boxes, as HOST:PORT or tls://HOST:PORT; one that answers is
    enough, and this box itself may be among them. An empty list waits for others to join."""

    advertise: PeerAddress | None = None
    """The address at which other boxes reach this one. Default: the address at which they see it,
    with scheme and port of the first tcp:// or tls:// address under listen.native that other
    machines can reach."""

    token_file: ConfigPath | None = None
    """A file with the token that this box shows to the others, readable only by its owner. Default:
    token_file of the box, which must then hold the token itself, not its hash."""

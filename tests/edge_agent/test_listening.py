"""Sockets on the addresses of a name."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from edge_agent.errors import AgentError
from edge_agent.listening import bind, check_free
from scheduler.address import parse_address

HERE, THERE = ("127.0.0.1", 0), ("192.0.2.1", 0)


def resolved_to(monkeypatch: pytest.MonkeyPatch, *found: tuple[int, Any]) -> None:
    addresses = [(family, socket.SOCK_STREAM, 0, "", where) for family, where in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)


@pytest.mark.parametrize(
    "absent", [(socket.AF_IPX, HERE), (socket.AF_INET, THERE)], ids=["no such family", "elsewhere"]
)
def test_a_name_may_have_addresses_that_the_box_has_not(
    monkeypatch: pytest.MonkeyPatch, absent: tuple[int, Any]
) -> None:
    address = parse_address("tcp://box:0")
    resolved_to(monkeypatch, absent, (socket.AF_INET, HERE))
    check_free(address)
    made, _ = bind(address, listens=True)
    assert made is not None
    with made:
        assert made.getsockname()[0] == HERE[0]
    resolved_to(monkeypatch, absent)
    for take in (check_free, lambda each: bind(each, listens=True)):
        with pytest.raises(AgentError, match="tcp://box:0"):
            take(address)

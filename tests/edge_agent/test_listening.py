"""Sockets on the addresses of a name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_port
from edge_agent.errors import AgentError
from edge_agent.listening import bind, check_free, remove_stale
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


def test_only_sockets_on_which_nobody_listens_are_removed(tmp_path: Path) -> None:
    used, left, file = tmp_path / "used", tmp_path / "left", tmp_path / "file"
    file.touch()
    with socket.socket(socket.AF_UNIX) as open_door:
        open_door.bind(str(used))
        open_door.listen(1)
        with socket.socket(socket.AF_UNIX) as closed_door:
            closed_door.bind(str(left))
        paths = used, left, file, tmp_path / "none"
        remove_stale(
            [*(parse_address(f"unix://{path}") for path in paths), parse_address("tcp://a:1")]
        )
    assert [path.exists() for path in paths] == [True, False, True, False]


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(
    not (socket.has_dualstack_ipv6() and Path("/proc/net/if_inet6").exists()), reason="no IPv6 here"
)


@needs_ipv6
@pytest.mark.parametrize("also", ["", "tcp://0.0.0.0", "tcp://127.0.0.1"])
def test_every_address_means_those_of_ipv4_too_unless_some_are_listed(also: str) -> None:
    port = free_port()
    every = parse_address(f"tcp://[::]:{port}")
    listed = [every, *([parse_address(f"{also}:{port}")] if also else [])]
    for address in listed:
        check_free(address, listed)
    held = [bind(address, True, listed)[0] for address in listed]
    assert reaches("::1", port)
    assert reaches("127.0.0.1", port)
    for made in held:
        assert made is not None
        made.close()


@needs_ipv6
def test_every_address_is_free_only_if_those_of_ipv4_are() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        every = parse_address(f"tcp://[::]:{taken.getsockname()[1]}")
        with pytest.raises(AgentError, match="in use"):
            check_free(every)

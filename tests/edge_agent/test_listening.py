"""Sockets on the addresses of a name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

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

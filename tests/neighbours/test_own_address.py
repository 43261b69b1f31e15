"""The address that a box says to the others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.config.box import Config
from scheduler.daemon.driver import Driver
from scheduler.daemon.parts import neighbours_of
from scheduler.sockets import listener_for_both, local_host_of
from tests.edge_agent.test_listening import needs_ipv6


@pytest.mark.parametrize(
    ("native", "advertise", "said"),
    [
        (["tcp://0.0.0.0:8702"], None, "tcp://10.0.0.7:8702"),
        (["tls://0.0.0.0:8743"], None, "tls://10.0.0.7:8743"),
        (["tcp://127.0.0.1:8702", "tls://0.0.0.0:8743"], None, "tls://10.0.0.7:8743"),
        (["tls://[::]:8743", "tcp://0.0.0.0:8702"], None, "tls://10.0.0.7:8743"),
        (["tcp://127.0.0.1:8702"], None, "tcp://10.0.0.7:8702"),
        (["tcp://0.0.0.0:8702"], "tls://box-a.lan:443", "tls://box-a.lan:443"),
        ([], "box-a.lan:8702", "tcp://box-a.lan:8702"),
    ],
)
def test_a_box_says_the_address_at_which_others_reach_it(
    tmp_path: Path, native: list[str], advertise: str | None, said: str
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("lx_0123456789abcdef")
    listen = [f"unix://{tmp_path}/s.sock", *native]
    neighbours: dict[str, Any] = {"name": "box-a", "advertise": advertise}
    settings = {"listen": {"native": listen}, "token_file": token, "neighbours": neighbours}
    config = Config.model_validate({**settings, "tls": {"cert": "c.pem", "key": "k.pem"}})
    connection = cast(Any, SimpleNamespace(local_host="10.0.0.7"))

    async def introduction() -> dict[str, Any]:
        made = neighbours_of(config, Driver(), listen, lambda _model: True)
        assert made is not None
        return made.introduction(connection)

    assert asyncio.run(introduction())["address"] == said


@needs_ipv6
def test_who_came_by_ipv4_to_a_door_for_both_sees_that_address() -> None:
    with listener_for_both(0) as door:
        port = door.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=5), door.accept()[0] as near:
                assert local_host_of(near.getsockname()) == host
    assert local_host_of("/run/laxity.sock") is None

"""The address that a box says to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.config.box import Config
from scheduler.daemon.driver import Driver
from scheduler.daemon.parts import neighbours_of


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

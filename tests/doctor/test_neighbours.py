"""`laxity doctor`: what it notices of the boxes to join, and of what this one shows to them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from benchmarks.ports import free_port
from scheduler import wire
from scheduler.config.box import Config
from scheduler.daemon.driver import Driver
from scheduler.daemon.neighbours.neighbours import Neighbours, SiteOptions
from scheduler.doctor import neighbours
from scheduler.doctor.findings import Finding, Surroundings
from scheduler.doctor.neighbours import check_neighbours
from scheduler.ingress import caller
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.policy_loading import FALLBACK
from scheduler.tenants import OWNER, Access, hash_of

TOKEN = "a-token-that-nobody-may-read"


class OtherBox:
    """The native door of another box, on an event loop of its own."""

    def __init__(
        self, site: str = "line-3", tls: ssl.SSLContext | None = None, alone: bool = False
    ):
        self.site, self.tls, self.alone = site, tls, alone
        self.scopes = OWNER.scopes

    async def start(self) -> None:
        owner = OWNER.model_copy(update={"tokens": (hash_of(TOKEN),), "scopes": self.scopes})
        rules = DoorRules(self.site, Access([owner]), wire.FrameLimits(), 8, 10**12)
        self.driver = Driver(FALLBACK)
        self.door = NativeDoor(self.driver, rules, self.driver.status)
        if not self.alone:
            options = SiteOptions(self.site, "other")
            self.door.neighbours = self.neighbours = Neighbours(self.driver, options)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.door, "127.0.0.1", 0, ssl=self.tls)
        scheme = "tcp" if self.tls is None else "tls"
        self.address = f"{scheme}://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self.server.close()
        self.door.close()
        await self.driver.close()


@contextmanager
def up(box: OtherBox) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(box.start(), loop).result(20)
    try:
        yield box.address
    finally:
        asyncio.run_coroutine_threadsafe(box.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def found(folder: Path, *join: str, token: str = TOKEN, **settings: Any) -> list[Finding]:
    (folder / "token").touch(0o600)
    (folder / "token").write_text(token)
    given = {
        "site": "line-3",
        "listen": {"native": "tcp://127.0.0.1:1"},
        "token_file": "token",
        "neighbours": {"name": "this", "join": list(join), **settings.pop("neighbours", {})},
        **settings,
    }
    config = Config.model_validate(given, context={"base": folder})
    return list(check_neighbours(Surroundings(config, ())))


def test_without_neighbours_there_is_nothing_to_look_at():
    assert [each.level for each in check_neighbours(Surroundings(Config(), ()))] == ["good"]


def test_a_box_that_can_be_joined_is_good_and_is_not_told_that_one_called(tmp_path):
    box = OtherBox()
    with up(box) as address:
        (good,) = found(tmp_path, address)
        assert not list(box.neighbours._members)
    assert good.level == "good"
    assert good.message.startswith(f"{address} answers in ")


@pytest.mark.parametrize(
    ("box", "token", "told", "remedy"),
    [
        (OtherBox(), TOKEN + "x", "refuses the token of this box", "token_file"),
        (OtherBox("line-4"), TOKEN, "belongs to the site 'line-4', not 'line-3'", "same site"),
        (OtherBox(alone=True), TOKEN, "this box has no neighbours", "a section neighbours"),
    ],
)
def test_a_box_that_would_refuse_this_one_says_why(tmp_path, box, token, told, remedy):
    with up(box) as address:
        (refused,) = found(tmp_path, address, token=token)
    assert refused.level == "error"
    assert told in refused.message
    assert remedy in refused.remedy
    assert TOKEN not in refused.message


def test_a_token_of_a_tenant_that_is_no_box_is_not_enough(tmp_path):
    box = OtherBox()
    box.scopes = ("infer",)
    with up(box) as address:
        (refused,) = found(tmp_path, address)
    assert refused.level == "error"
    assert "peer" in refused.message


def test_a_box_of_another_protocol_is_told_to_be_upgraded(tmp_path, monkeypatch):
    monkeypatch.setattr(caller, "VERSION", wire.VERSION + 1)
    with up(OtherBox()) as address:
        (refused,) = found(tmp_path, address)
    assert refused.level == "error"
    assert f"version {wire.VERSION + 1} of the native protocol" in refused.message
    assert "upgrade" in refused.remedy


def test_boxes_that_are_away_or_silent_are_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "PATIENCE_S", 2.0)  # enough for the good one
    with socket.create_server(("127.0.0.1", 0)) as silent, up(OtherBox()) as address:
        port = silent.getsockname()[1]
        away, mute, good = found(tmp_path, f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}", address)
    assert [away.level, mute.level, good.level] == ["warning", "warning", "good"]
    assert "Connection refused" in away.message
    assert "no answer within 2 s" in mute.message


def test_its_own_address_among_them_is_not_missed(tmp_path):
    port = free_port()
    listen = {"native": f"tcp://0.0.0.0:{port}"}
    assert found(tmp_path, f"127.0.0.1:{port}", listen=listen) == []


def test_a_box_with_tls_is_spoken_to_as_its_address_says(tmp_path, monkeypatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with up(OtherBox(tls=context)) as address:
        monkeypatch.setenv("LAXITY_CA", str(tmp_path / "ca.pem"))
        assert [each.level for each in found(tmp_path, address)] == ["good"]
        (plain,) = found(tmp_path, address.replace("tls:", "tcp:"))
        monkeypatch.delenv("LAXITY_CA")
        (unknown,) = found(tmp_path, address)
    assert plain.level == unknown.level == "error"
    assert "its address begins with tls://" in plain.message
    assert plain.remedy == "correct it under neighbours.join"
    assert "LAXITY_CA" in unknown.message
    assert "environment" in unknown.remedy


def test_a_door_for_other_protocols_is_told_from_a_box_of_another_version(tmp_path):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    class HttpDoor(OtherBox):
        async def start(self) -> None:
            self.server = await asyncio.start_server(answer, "127.0.0.1", 0)
            self.address = f"tcp://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

        async def stop(self) -> None:
            self.server.close()

    with up(HttpDoor()) as address:
        (wrong,) = found(tmp_path, address)
    assert "does not speak laxity's native protocol" in wrong.message
    assert wrong.remedy == "correct it under neighbours.join"


@pytest.mark.parametrize(
    ("names", "listen", "advertise", "level"),
    [
        (["box-a.lan"], "tls://10.0.0.7:8702", None, "error"),
        (["box-a.lan", "10.0.0.7"], "tls://10.0.0.7:8702", None, "good"),
        (["box-a.lan"], "tls://10.0.0.7:8702", "tls://BOX-A.lan:8702", "good"),
        (["*.lan"], "tls://10.0.0.7:8702", "tls://box-a.lan:8702", "good"),
        (["*.lan"], "tls://10.0.0.7:8702", "tls://a.box.lan:8702", "error"),
        (["box-a.lan"], "tls://0.0.0.0:8702", None, "error"),
        (["box-a.lan"], "tls://0.0.0.0:8702", "tcp://10.0.0.9:8702", None),
        (["box-a.lan"], "tcp://10.0.0.7:8702", None, None),
    ],
)
def test_the_certificate_is_for_the_address_at_which_others_see_the_box(
    tmp_path, names, listen, advertise, level
):
    issued = trustme.CA().issue_cert(*names)
    issued.private_key_pem.write_to_path(tmp_path / "box.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "box.pem")
    tls = {"cert": "box.pem", "key": "box.key"}
    more = {} if advertise is None else {"advertise": advertise}
    _, *told = found(tmp_path, listen={"native": listen}, tls=tls, neighbours=more)
    assert [each.level for each in told] == ([] if level is None else [level])
    if level == "error":
        assert "neighbours.advertise" in told[0].remedy
        assert "box-a.lan" in told[0].message or "*.lan" in told[0].message

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
import structlog
import uvloop

from scheduler.ingress import unix_door
from scheduler.ingress.unix_door import UnixDoor
from tests.waiting import PATIENCE_S


class Echo(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(100)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]))


async def says(reader, writer):
    writer.write(b"a")
    return await reader.read(1) == b"a"


async def connected(path):
    """A connection, once there is somebody."""
    while True:
        try:
            return await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(0)


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_door_whose_file_is_deleted_is_there_again(tmp_path, monkeypatch, with_folder):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    path = tmp_path / "run" / "s"
    path.parent.mkdir()

    async def main():
        door = await UnixDoor(Echo, str(path)).open()
        before = await connected(path)
        shutil.rmtree(path.parent) if with_folder else path.unlink()
        after = await asyncio.wait_for(connected(path), PATIENCE_S)
        assert await says(*before)
        assert await says(*after)
        assert path.stat().st_mode & 0o777 == 0o600
        door.close()
        for _, writer in (before, after):
            writer.close()

    with structlog.testing.capture_logs() as logs:
        uvloop.run(main())
    assert [log["log_level"] for log in logs] == ["warning"]


def test_one_that_can_not_be_there_again_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    folder = tmp_path / "run"
    folder.mkdir()

    async def main():
        door = await UnixDoor(Echo, str(folder / "s")).open()
        os.rename(folder, tmp_path / "other")
        folder.write_text("")
        while not logs:
            await asyncio.sleep(0)
        folder.unlink()
        _, writer = await asyncio.wait_for(connected(folder / "s"), PATIENCE_S)
        writer.close()
        door.close()

    with structlog.testing.capture_logs() as logs:
        uvloop.run(main())
    assert [log["log_level"] for log in logs] == ["error", "warning"]

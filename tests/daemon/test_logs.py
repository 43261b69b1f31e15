from __future__ import annotations

import errno
import io
import os
import sys

import pytest
import structlog

from scheduler.config.box import LogConfig
from scheduler.daemon.logs import set_up_logging


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_tells_no_values_of_variables(form: str, capsys: pytest.CaptureFixture[str]):
    def send(headers: dict[str, str]) -> None:
        raise ValueError("broken")

    key = "-".join(["s3cret"] * 2)  # tracebacks do tell the lines of the code
    was = structlog.get_config()
    try:
        set_up_logging(LogConfig(format=form))
        try:
            send({"x-api-key": key})
        except ValueError as error:
            structlog.get_logger().error("cloud link failed", exc_info=error)
    finally:
        structlog.configure(**was)
    told = capsys.readouterr().err
    assert "cloud link failed" in told
    assert "broken" in told
    assert key not in told


def test_a_line_for_which_there_is_no_room_is_no_error_of_what_logs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    class Disk(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(text)

    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    was = structlog.get_config()
    try:
        set_up_logging(LogConfig(format="json"))
        structlog.get_logger().warning("target lost")
        disk.is_full = False
        structlog.get_logger().warning("target found")
    finally:
        structlog.configure(**was)
    assert "target found" in disk.getvalue()
    assert "target lost" not in disk.getvalue()

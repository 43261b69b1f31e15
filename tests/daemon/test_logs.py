from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import structlog

from scheduler.config.box import LogConfig
from scheduler.daemon.logs import set_up_logging


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_tells_no_values_of_variables(
    form: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stderr", sys.stderr)

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
    told = capfd.readouterr().err
    assert "cloud link failed" in told
    assert "broken" in told
    assert key not in told


def test_a_line_for_which_there_is_no_room_is_no_error_of_what_logs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    disk = tmp_path / "log"
    with open("/dev/full", "w") as stderr, disk.open("w") as room:
        monkeypatch.setattr(sys, "stderr", stderr)
        was = structlog.get_config()
        try:
            set_up_logging(LogConfig(format="json"))
            structlog.get_logger().warning("target lost")
            os.dup2(room.fileno(), stderr.fileno())
            structlog.get_logger().warning("target found")
        finally:
            structlog.configure(**was)
    assert "target found" in disk.read_text()
    assert "target lost" not in disk.read_text()

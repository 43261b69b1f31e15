from __future__ import annotations

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

"""Commands whose output goes nowhere: each ends in a line at most, and with a true status."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_box import FakeBox


def shell(command: str, after: str) -> tuple[int, str]:
    """Exit status of a command line with a redirection, and what it says on stderr."""
    laxity = shlex.join([sys.executable, "-m", "scheduler.cli", *shlex.split(command)])
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {laxity} {after}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["token", "config schema"])
def test_a_full_disk_is_said_in_a_line(command):
    told = "laxity: the output can't be written: No space left on device\n"
    assert shell(command, "> /dev/full") == (1, told)


@pytest.mark.parametrize("command", ["token", "config schema"])
def test_a_reader_that_goes_away_hears_nothing(command):
    assert shell(command, "| true")[1] == ""


class StatusBox(FakeBox):
    """Answers `status`."""

    def take(self, peer, header):
        if header["t"] == "status":
            peer.send({"t": "reply", "id": header["id"], "value": {"targets": []}})
        else:
            super().take(peer, header)


@pytest.mark.parametrize("after", [">&-", "<&- >&-"])
def test_no_connection_takes_the_place_of_a_closed_stream(tmp_path, after):
    box = StatusBox(tmp_path / "s").start()
    try:
        assert shell(f"status --json --url {box.url}", after) == (0, "")
    finally:
        box.close()

"""An actor that Ray has restarted, and that can't start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LACKS = """
from workers import starting_again

starting_again._PAUSE_S = 0
starting_again.is_brought_back = lambda: True
try:
    with starting_again.tried_again("the worker"):
        raise FileNotFoundError("no models")
finally:
    print("Ray gives up on it")
"""


def test_its_process_ends_also_where_the_log_has_no_room() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", LACKS], stdout=subprocess.PIPE, stderr=full, timeout=60
        )
    assert (ended.returncode, ended.stdout) == (1, b"")

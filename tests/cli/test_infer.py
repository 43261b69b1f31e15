"""`laxity infer --repeat` that is not waited for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scheduler import wire
from tests.fake_box import FakeBox, Peer


@pytest.mark.parametrize("refused", [False, True])
def test_after_ctrl_c_it_shows_what_was_measured_until_then(
    box: FakeBox, tmp_path: Path, refused: bool
) -> None:
    def answer_two(peer: Peer, header: wire.Header) -> None:
        count = len(box.messages("infer"))
        if count == 2 and refused:
            peer.refuse(header, "overloaded", "full")
        elif count <= 2:
            peer.answer(header)

    np.save(tmp_path / "scan.npy", np.zeros(3, np.float32))
    box.on_infer = answer_two
    words = ["infer", "digits", "-i", str(tmp_path / "scan.npy"), "--deadline-ms", "60000"]
    more = ["--repeat", "9", "--json", "--url", box.url]
    command = [sys.executable, "-m", "scheduler.cli", *words, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        box.wait("infer", 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    outcomes = [request["outcome"] for request in json.loads(out)["requests"]]
    assert outcomes == ["completed", "overloaded" if refused else "completed"]
    assert "interrupted after 2 of 9" in err
    assert "Traceback" not in err
    assert process.returncode == 130

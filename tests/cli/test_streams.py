"""Commands whose output goes nowhere: each ends in a line at most, and with a true status."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
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


def replayed(folder: Path, *files: str) -> str:
    """A command line that plays a few requests and writes these files."""
    fleet, work = folder / "fleet.yaml", folder / "work.yaml"
    fleet.write_text(
        "models: [{name: digits, base_ms: 5, per_item_ms: 1}]\n"
        "boxes: [{devices: [{id: 'cpu:0'}]}]\n"
    )
    work.write_text(
        "requests: 9\nprocess: poisson\nload: 0.8\nmix: [{model: digits, deadline_ms: 50}]\n"
    )
    return f"replay {work} --fleet {fleet} --policy edf,fcfs --no-bound {shlex.join(files)}"


def test_who_reads_a_table_no_further_has_the_files_all_the_same(tmp_path):
    page, rows = tmp_path / "r.html", tmp_path / "r.json"
    command = replayed(tmp_path, "--report", str(page), "--json", str(rows))
    assert shell(command, "| true") == (1, f"laxity: the report is in {page}\n")
    assert "</html>" in page.read_text()
    assert len(json.loads(rows.read_text())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_takes_one_file_and_not_the_others(tmp_path):
    page = tmp_path / "r.html"
    command = replayed(tmp_path, "--json", "/dev/full", "--report", str(page))
    status, err = shell(command, "> /dev/null")
    assert status == 2
    assert err.splitlines() == [
        f"laxity: the report is in {page}",
        "laxity: /dev/full can't be written: No space left on device",
    ]
    told = "laxity: the output can't be written: No space left on device\n"
    assert shell(replayed(tmp_path), "> /dev/full") == (1, told)


def test_a_file_that_can_not_be_written_whole_is_as_it_was(tmp_path):
    page, rows, full = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "full.json"
    page.write_text("<old>")
    rows.write_text("[1]")
    full.write_text("{}")
    command = replayed(tmp_path, "--report", str(page), "--json", str(rows), "--full", str(full))
    before = sorted(tmp_path.iterdir())
    with file_size_limit(200):
        status, err = shell(command, "")
    assert status == 2
    assert [line.split()[-4:] for line in err.splitlines()] == [
        ["written:", "File", "too", "large"]
    ] * 3
    assert (page.read_text(), rows.read_text(), full.read_text()) == ("<old>", "[1]", "{}")
    assert sorted(tmp_path.iterdir()) == before


def test_rows_and_table_that_go_to_the_same_file_are_both_there(tmp_path):
    both = tmp_path / "both"
    status, err = shell(replayed(tmp_path, "--json", "/dev/stdout"), f"> {both}")
    assert (status, err) == (0, "")
    rows, table = both.read_text().split("\n]\n")
    assert len(json.loads(f"{rows}]")) == 2
    assert "on time" in table


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_who_reads_a_result_no_further_has_it_in_its_file(box, tmp_path):
    scan, out = tmp_path / "scan.npy", tmp_path / "out.npz"
    np.save(scan, np.zeros(3, np.float32))
    box.on_infer = lambda peer, header: peer.answer(header)
    command = f"infer digits -i {scan} --deadline-ms 60000 -o {out} --url {box.url}"
    status, err = shell(command, "| true")
    assert (status, err) == (1, f"laxity: saved image of the last result to {out}\n")
    assert out.exists()

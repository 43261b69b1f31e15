"""Files that are replaced whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from scheduler.files import folder_fault, replace_file, write_output


def test_who_reads_meanwhile_has_the_one_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "f"
    contents = {letter * 100_000 for letter in "abc"}
    replace_file(path, "a" * 100_000)

    def write(content: str) -> None:
        for _ in range(50):
            replace_file(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("durable", [False, True])
def test_bytes_and_who_may_read_them(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "key"
    replace_file(path, b"\xff\x00", durable=durable, mode=0o600)
    assert path.read_bytes() == b"\xff\x00"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_there_stays_where_the_new_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "f", "\ud800")
    os.mkdir(tmp_path / "folder")
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", "x")
    assert (tmp_path / "f").read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f", "folder"]


def test_an_output_keeps_the_links_to_it_and_who_may_read_it(tmp_path: Path) -> None:
    path, link = tmp_path / "f", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to("f")
    write_output(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_output_to_a_pipe_goes_there(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "content")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_output_in_a_folder_that_takes_no_others_is_written_in_place() -> None:
    as_another = """
import os, sys
from pathlib import Path
from scheduler.cli.places import check_places
from scheduler.files import write_output
path = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
check_places(path)
write_output(path, "new")
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_text("old, and longer")
        path.chmod(0o666)
        path.parent.chmod(0o555)
        try:
            subprocess.run([sys.executable, "-c", as_another, path], check=True)
            assert path.read_text() == "new"
        finally:
            path.parent.chmod(0o755)


def test_why_a_folder_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert folder_fault(tmp_path) is None
    assert folder_fault(tmp_path / "none") == "there is no such folder"
    assert folder_fault(tmp_path / "file") == "not a folder"
    assert folder_fault(tmp_path / ("n" * 300)) == "can't be read: File name too long"

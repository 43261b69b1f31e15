"""Where Python processes are started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.launching import launch_folder


def test_only_a_checkout_is_a_folder_to_start_in(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "scheduler.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert launch_folder() == "/"
    tmp_path.joinpath("scheduler.py").unlink()
    tmp_path.rmdir()
    assert launch_folder() == "/"
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    assert launch_folder() == str(root)


@pytest.mark.parametrize("given", [".", "mine:/abs", "/abs::../there", "/abs", ""])
def test_what_is_on_the_import_path_stays_on_it(tmp_path: Path, monkeypatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", given)
    before = [os.path.abspath(entry) for entry in given.split(":") if entry]
    monkeypatch.chdir(launch_folder())
    after = os.environ["PYTHONPATH"].split(":")
    assert [entry for entry in after if entry] == before
    assert len(after) == len(given.split(":"))

"""Where Python processes are started."""

from __future__ import annotations

from pathlib import Path

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

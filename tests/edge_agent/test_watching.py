"""A change of a watched file is told of, however it is done, and however often."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import watchfiles
from watchfiles._rust_notify import WatchfilesRustInternalError

from edge_agent import watching
from tests.waiting import eventually


class Told:
    """What was in a file each time that a change of it was told."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.read: list[str] = []
        self._stopping = threading.Event()
        watch = watching.FileWatch([file])
        self._thread = threading.Thread(target=watch.run, args=(self._changed, self._stopping))
        self._thread.start()

    def _changed(self) -> None:
        self.read.append(self._file.read_text() if self._file.exists() else "gone")

    def says(self, text: str) -> None:
        """Returns once the last change that was told of left the file like this."""
        eventually(lambda: self.read[-1:] == [text])

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Told]]:
    # What is changed before its folder is watched is found at the next look.
    monkeypatch.setattr(watching, "_LOOK_S", 0.5)
    made: list[Told] = []

    def watch(file: Path) -> Told:
        made.append(Told(file))
        return made[-1]

    yield watch
    for one in made:
        one.stop()


def turn(link: Path, target: str) -> None:
    """Points a link elsewhere in one step, as Kubernetes does."""
    new = link.with_name("..new")
    new.symlink_to(target)
    os.replace(new, link)


def version(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "edge.yaml").write_text(text)


def test_a_file_is_written_to_replaced_removed_and_made_again(
    tmp_path: Path, told: Callable[[Path], Told]
) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("1")
    seen = told(file)
    file.write_text("22")
    seen.says("22")
    (tmp_path / "new").write_text("333")
    os.replace(tmp_path / "new", file)
    seen.says("333")
    file.unlink()
    seen.says("gone")
    file.write_text("4444")
    seen.says("4444")


def test_a_configmap_changes_by_the_link_beside_the_files_own(
    tmp_path: Path, told: Callable[[Path], Told]
) -> None:
    version(tmp_path / "..v1", "1")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "edge.yaml").symlink_to("..data/edge.yaml")
    seen = told(tmp_path / "edge.yaml")
    for number in ("22", "333"):
        version(tmp_path / f"..v{number}", number)
        turn(tmp_path / "..data", f"..v{number}")
        seen.says(number)
    (tmp_path / "..v333" / "edge.yaml").write_text("4444")
    seen.says("4444")


def test_the_folder_is_a_link_that_is_turned_or_is_replaced(
    tmp_path: Path, told: Callable[[Path], Told]
) -> None:
    version(tmp_path / "blue", "1")
    version(tmp_path / "green", "22")
    (tmp_path / "etc").symlink_to("blue")
    seen = told(tmp_path / "etc" / "edge.yaml")
    turn(tmp_path / "etc", "green")
    seen.says("22")
    shutil.rmtree(tmp_path / "green")
    seen.says("gone")
    version(tmp_path / "green", "333")
    seen.says("333")
    (tmp_path / "green" / "edge.yaml").write_text("4444")
    seen.says("4444")


@pytest.mark.parametrize("kind", [OSError, WatchfilesRustInternalError])
def test_a_change_is_seen_where_folders_say_nothing(
    tmp_path: Path, told: Callable[[Path], Told], monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise kind("OS file watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", none_left)
    monkeypatch.setattr(watching, "_LOOK_S", 0.01)
    file = tmp_path / "edge.yaml"
    file.write_text("1")
    seen = told(file)
    file.write_text("22")
    seen.says("22")


def test_links_in_a_circle_end_nothing(tmp_path: Path, told: Callable[[Path], Told]) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    seen = told(tmp_path / "a")
    turn(tmp_path / "b", "c")
    (tmp_path / "c").write_text("1")
    seen.says("1")


def test_a_link_that_goes_while_it_is_followed_is_followed_again_later(
    tmp_path: Path, told: Callable[[Path], Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    version(tmp_path / "1", "1")
    version(tmp_path / "2", "22")
    (tmp_path / "now").symlink_to("1")
    real, followed = Path.readlink, threading.Event()

    def readlink(path: Path) -> Path:
        if followed.is_set():
            return real(path)
        followed.set()
        (tmp_path / "now").unlink()
        try:
            return real(path)
        finally:
            (tmp_path / "now").symlink_to("2")

    monkeypatch.setattr(Path, "readlink", readlink)
    told(tmp_path / "now/edge.yaml").says("22")

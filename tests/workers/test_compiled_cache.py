from __future__ import annotations

import shutil
import stat

import pytest

from workers.compiled_cache import CompiledCache

ON = {"runtime": "tensorrt 10.3", "digest": "ab"}


@pytest.fixture
def cache(tmp_path):
    return CompiledCache(tmp_path / "compiled")


@pytest.fixture
def folder(cache):
    made = cache.folder("gpu-0", ON)
    (made / "model.engine").write_bytes(b"an engine")
    cache.seal(made)
    return made


def fault(tmp_path, folder) -> str | None:
    """What a start of the box finds."""
    return CompiledCache(tmp_path / "compiled").check(folder)


def test_what_this_box_sealed_is_sound_after_a_restart(tmp_path, folder):
    assert fault(tmp_path, folder) is None
    assert (folder / "model.engine").read_bytes() == b"an engine"


def test_conditions_name_the_folder(cache, folder):
    assert cache.folder("gpu-0", dict(reversed(ON.items()))) == folder
    assert cache.folder("gpu-0", {**ON, "runtime": "tensorrt 11.4"}) != folder
    assert folder.name.startswith("gpu-0-")


def test_an_engine_of_another_box_is_not_used(tmp_path, folder):
    other = CompiledCache(tmp_path / "other")
    theirs = other.folder("gpu-0", ON)
    (theirs / "model.engine").write_bytes(b"their engine")
    other.seal(theirs)
    for file in theirs.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())

    assert "model.engine is not the file that this box wrote" in (fault(tmp_path, folder) or "")
    assert list(folder.iterdir()) == []
    assert fault(tmp_path, folder) is None


def test_files_without_a_seal_are_not_used(tmp_path, cache):
    folder = cache.folder("gpu-0", {})
    (folder / "dropped.engine").write_bytes(b"from anywhere")

    assert "files without this box's seal: 1" in (fault(tmp_path, folder) or "")
    assert list(folder.iterdir()) == []


def test_a_file_that_changes_after_it_was_checked_is_checked_again(cache, folder):
    assert cache.check(folder) is None

    (folder / "model.engine").write_bytes(b"an EngineX")

    assert "not the file that this box wrote" in (cache.check(folder) or "")


def test_two_names_cannot_be_exchanged(tmp_path, cache):
    folder = cache.folder("gpu-0", {})
    (folder / "a").write_bytes(b"one")
    (folder / "b").write_bytes(b"two")
    cache.seal(folder)
    (folder / "a").write_bytes(b"two")
    (folder / "b").write_bytes(b"one")

    assert fault(tmp_path, folder) is not None


def test_folders_that_nobody_asked_for_are_removed(tmp_path, cache, folder):
    later = CompiledCache(tmp_path / "compiled")
    used = later.folder("gpu-0", {"case": "new"})
    others = later.folder("gpu-1", {})
    later.remove_unused("gpu-0", {"new"})

    assert not folder.exists()
    assert used.exists()
    assert others.exists()


def test_the_key_is_the_owners_alone_and_made_once(tmp_path, cache):
    key = tmp_path / "compiled" / "box.key"
    before = key.read_bytes()

    CompiledCache(tmp_path / "compiled")

    assert key.read_bytes() == before
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_damaged_key_is_replaced_and_vouches_for_nothing(tmp_path, folder):
    (tmp_path / "compiled" / "box.key").write_bytes(b"short")

    assert "not the file that this box wrote" in (fault(tmp_path, folder) or "")


def test_a_folder_is_made_though_all_were_removed_since_the_start(tmp_path, cache):
    shutil.rmtree(tmp_path / "compiled")
    assert cache.folder("gpu-0", ON).is_dir()

"""The last usable content of the files of tokens and certificates, while these are broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from scheduler.config.box import Config, load_config
from scheduler.config.cloud import CloudTlsConfig
from scheduler.config.doors import TlsConfig
from scheduler.ingress import process, secret_files
from scheduler.ingress.certificates import server_context
from scheduler.ingress.native import NativeDoor
from scheduler.ingress.process import _usable
from scheduler.ingress.secret_files import LastGood
from scheduler.ingress.taken_files import TakenFiles
from scheduler.tenants import Access, hash_of, load_access, new_token, read_tenants, read_token

TOKEN, CAMERA = new_token(), new_token()

BOX = """
listen: {native: "tls://127.0.0.1:0"}
state_dir: state
token_file: token
tenants_file: tenants.yaml
tls: {cert: own.pem, key: own.key}
neighbours: {name: box-a, token_file: shown}
cloud: [{name: eu, url: "grpcs://infer.example:443", token_file: eu.token, tls: {ca: ca.pem}}]
"""


def write(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)


def renew(folder: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    pair = authority.issue_cert("127.0.0.1")
    pair.private_key_pem.write_to_path(folder / "own.key")
    pair.cert_chain_pems[0].write_to_path(folder / "own.pem")


@pytest.fixture
def box(tmp_path: Path) -> Config:
    write(tmp_path / "edge.yaml", BOX)
    write(tmp_path / "token", TOKEN)
    write(tmp_path / "shown", TOKEN)
    write(tmp_path / "eu.token", TOKEN)
    tenants = f'tenants: [{{name: camera, tokens: ["{hash_of(CAMERA)}"]}}]'
    write(tmp_path / "tenants.yaml", tenants)
    renew(tmp_path)
    config = load_config(tmp_path / "edge.yaml")
    config.state_dir.mkdir()
    return config


def lets_in(config: Config, token: str) -> str:
    return load_access(config.token_file, config.tenants_file).by_token(token).name


def shown(config: Config) -> str:
    assert config.neighbours is not None
    assert config.neighbours.token_file is not None
    return read_token(config.neighbours.token_file)


def of_cloud(config: Config) -> tuple[str, bytes]:
    (cloud,) = config.cloud
    assert cloud.token_file is not None
    assert cloud.tls.ca is not None
    return cloud.token_file.read_text(), cloud.tls.ca.read_bytes()


BREAKS: dict[str, Callable[[Path], object]] = {
    "tokens": lambda box: write(box / "tenants.yaml", "tenants: [{name: camera, tokens: ["),
    "certificates": lambda box: write(box / "own.pem", "-----BEGIN CERT"),
    "token for other boxes": lambda box: (box / "shown").unlink(),
    "files of cloud eu": lambda box: (box / "eu.token").chmod(0o644),
}


def test_where_all_files_are_fine_none_is_replaced(box: Config) -> None:
    last_good = LastGood(box.state_dir)
    assert last_good.usable(box) == (box, [])
    last_good.keep(box)
    assert last_good.usable(box) == (box, [])


@pytest.mark.parametrize("broken", BREAKS)
def test_what_was_last_usable_stands_in_for_what_is_broken_and_is_told(
    box: Config, tmp_path: Path, broken: str
) -> None:
    cloud = of_cloud(box)
    LastGood(box.state_dir).keep(box)
    BREAKS[broken](tmp_path)
    usable, told = LastGood(box.state_dir).usable(box)
    assert [name for name, _ in told] == [broken]
    assert str(tmp_path) in str(told[0][1])
    assert str(box.state_dir) not in str(told[0][1])
    assert (lets_in(usable, TOKEN), lets_in(usable, CAMERA)) == ("owner", "camera")
    assert usable.tls is not None
    server_context(usable.tls)
    assert shown(usable) == TOKEN
    assert of_cloud(usable) == cloud
    LastGood(box.state_dir).keep(box)  # which takes nothing that is broken
    assert LastGood(box.state_dir).usable(box)[0] == usable


@pytest.mark.parametrize("broken", BREAKS)
def test_without_a_copy_the_files_stay_as_they_are(
    box: Config, tmp_path: Path, broken: str
) -> None:
    BREAKS[broken](tmp_path)
    assert LastGood(box.state_dir).usable(box) == (box, [])
    LastGood(box.state_dir).keep(box)
    assert LastGood(box.state_dir).usable(box) == (box, [])


def test_a_certificate_never_goes_with_the_key_of_another(box: Config, tmp_path: Path) -> None:
    last_good = LastGood(box.state_dir)
    for _ in range(2):
        renew(tmp_path)
        last_good.keep(box)
    certificate = (tmp_path / "own.pem").read_bytes()
    key = (tmp_path / "own.key").read_bytes()
    renew(tmp_path)
    (tmp_path / "own.pem").write_bytes(certificate)  # the key was renewed first
    last_good.keep(box)
    usable, told = last_good.usable(box)
    assert "its own key" in str(told[0][1])
    assert usable.tls is not None
    assert (usable.tls.cert.read_bytes(), usable.tls.key.read_bytes()) == (certificate, key)


def test_copies_are_for_this_user_alone(box: Config) -> None:
    LastGood(box.state_dir).keep(box)
    folder = box.state_dir / "last_good"
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_where_there_is_no_room_there_is_no_copy_rather_than_one_that_lets_in_who_was_shut_out(
    box: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_good = LastGood(box.state_dir)
    last_good.keep(box)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "token", new_token())
    monkeypatch.setattr(secret_files, "replace_file", full)
    last_good.keep(box)
    write(tmp_path / "token", "")
    assert last_good.usable(box) == (box, [])


def test_copies_of_files_with_other_names_are_not_used_and_go(box: Config, tmp_path: Path) -> None:
    last_good = LastGood(box.state_dir)
    last_good.keep(box)
    other = box.model_copy(update={"token_file": tmp_path / "other"})
    assert last_good.usable(other) == (other, [])
    write(tmp_path / "other", TOKEN)
    last_good.keep(other)
    write(tmp_path / "token", "")
    assert last_good.usable(box) == (box, [])


def test_once_forgotten_there_are_none(box: Config, tmp_path: Path) -> None:
    last_good = LastGood(box.state_dir)
    last_good.keep(box)
    last_good.forget()
    write(tmp_path / "token", "")
    assert last_good.usable(box) == (box, [])
    assert list(box.state_dir.iterdir()) == []


# -- after a box was ended in the middle of its life


@pytest.mark.parametrize("broken", BREAKS)
def test_a_mistake_that_the_box_had_refused_keeps_the_next_from_nothing(
    box: Config, tmp_path: Path, broken: str
) -> None:
    running = LastGood(box.state_dir)
    running.keep(box)
    BREAKS[broken](tmp_path)
    running.keep(box)
    usable, told = LastGood(box.state_dir).usable(box, is_new=True)
    assert [name for name, _ in told] == [broken]
    LastGood(box.state_dir).begin(box, {broken})
    assert LastGood(box.state_dir).usable(box)[0] == usable, "nor its own processes"
    assert len(list((box.state_dir / "last_good").iterdir())) == 1, "the rest is made anew"


@pytest.mark.parametrize("broken", BREAKS)
def test_a_file_that_was_changed_since_does_not_bring_back_who_was_shut_out_by_that(
    box: Config, tmp_path: Path, broken: str
) -> None:
    LastGood(box.state_dir).keep(box)
    BREAKS[broken](tmp_path)
    assert LastGood(box.state_dir).usable(box, is_new=True) == (box, [])


def test_another_mistake_than_the_refused_one_is_told_to_who_made_it(
    box: Config, tmp_path: Path
) -> None:
    running = LastGood(box.state_dir)
    running.keep(box)
    write(tmp_path / "tenants.yaml", "tenants: [{name: camera, tokens: [")
    running.keep(box)
    write(tmp_path / "tenants.yaml", "tenants: [{name: other, tokens: [")
    assert LastGood(box.state_dir).usable(box, is_new=True) == (box, [])


def test_a_mistake_that_was_mended_before_the_end_is_told_if_it_is_made_again(
    box: Config, tmp_path: Path
) -> None:
    good = (tmp_path / "tenants.yaml").read_text()
    running = LastGood(box.state_dir)
    running.keep(box)
    for text in ("tenants: [", good):
        write(tmp_path / "tenants.yaml", text)
        running.keep(box)
    write(tmp_path / "tenants.yaml", "tenants: [")
    assert LastGood(box.state_dir).usable(box, is_new=True) == (box, [])


def test_a_box_that_starts_with_usable_files_has_no_use_for_older_ones(
    box: Config, tmp_path: Path
) -> None:
    """Its own processes would fall back on them before it has made copies."""
    LastGood(box.state_dir).keep(box)
    tenants = f'tenants: [{{name: arm, tokens: ["{hash_of(new_token())}"]}}]'
    write(tmp_path / "tenants.yaml", tenants)
    LastGood(box.state_dir).begin(box, ())
    write(tmp_path / "tenants.yaml", "tenants: [")
    assert LastGood(box.state_dir).usable(box) == (box, [])


def test_a_door_goes_on_with_what_is_its_own(box: Config, tmp_path: Path) -> None:
    LastGood(box.state_dir).keep(box)
    write(tmp_path / "token", "")
    write(tmp_path / "eu.token", "")
    usable = _usable(box)
    assert lets_in(usable, TOKEN) == "owner"
    assert usable.cloud == ()


def test_a_token_that_is_a_tenants_as_well_is_told_before_the_start(
    box: Config, tmp_path: Path
) -> None:
    write(tmp_path / "token", CAMERA)
    tokens = next(group for group in secret_files.groups_of(box) if group.name == "tokens")
    assert "each has its own" in str(tokens.problems()[0])
    only = tokens.problems(lambda path: path.name == "token")
    assert only == []


def test_what_this_user_may_not_read_is_left_out(box: Config, tmp_path: Path) -> None:
    tls = {"ca": tmp_path / "ca.pem", "cert": tmp_path / "own.pem", "key": tmp_path / "own.key"}
    (cloud,) = box.cloud
    more = {"cloud": (cloud.model_copy(update={"tls": CloudTlsConfig(**tls)}),)}
    for group in secret_files.groups_of(box.model_copy(update=more)):
        for away in group.files.values():
            assert group.problems(away.__ne__) == []


def test_a_door_reads_its_files_beside_its_event_loop(
    box: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def read(*files: Path | None) -> Access:
        readers.append(threading.current_thread())
        return load_access(*files)

    class Door:
        def __init__(self) -> None:
            self.reloaded = asyncio.Event()

        def reload(self, access: Access, tls: TlsConfig | None) -> None:
            assert access.by_token(TOKEN).name == "owner"
            assert tls == box.tls
            self.reloaded.set()

    async def run() -> None:
        door, asked = Door(), asyncio.Event()
        reloading = asyncio.create_task(process._reload(cast(Any, door), box, asked))
        asked.set()
        await door.reloaded.wait()
        reloading.cancel()

    monkeypatch.setattr(process, "load_access", read)
    asyncio.run(run())
    assert readers
    assert threading.main_thread() not in readers


def test_without_a_thread_for_it_a_door_reads_them_all_the_same(
    box: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Door:
        reloaded = 0

        def reload(self, access: Access, tls: TlsConfig | None) -> None:
            self.reloaded += 1

    async def run() -> None:
        door, asked = Door(), asyncio.Event()
        reloading = asyncio.create_task(process._reload(cast(Any, door), box, asked))
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", no_more)
            for count in (1, 2):
                asked.set()
                while door.reloaded < count:
                    await asyncio.sleep(0)
        reloading.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_long_file_is_parsed_once_for_all_who_look_at_it(box: Config) -> None:
    assert box.tenants_file is not None
    assert read_tenants(box.tenants_file) is read_tenants(box.tenants_file)
    write(box.tenants_file, f'tenants: [{{name: other, tokens: ["{hash_of(CAMERA)}"]}}]')
    assert lets_in(box, CAMERA) == "other"


def test_a_file_with_two_uses_is_told_of_once(box: Config) -> None:
    assert box.neighbours is not None
    assert box.token_file is not None
    same = box.neighbours.model_copy(update={"token_file": None})
    files = TakenFiles(
        box.model_copy(update={"neighbours": same, "state_dir": Path("/none")}), True
    )
    box.token_file.chmod(0o644)
    not_taken = files.read(None).not_taken
    assert len([told for told in not_taken if "chmod 600" in told]) == 1


def test_what_is_wrong_with_files_changes_with_what_doors_are_given(box: Config) -> None:
    """A status amid a look at the files tells neither too little nor too early."""

    class Door:
        neighbours = None
        given: Access | None = None

        def take_access(self, access: Access) -> None:
            self.given = access

    assert box.token_file is not None
    files, door = TakenFiles(box, True), Door()
    files.keep()
    box.token_file.chmod(0o644)
    files.usable()
    (wrong,) = files.not_taken
    box.token_file.chmod(0o600)
    read = files.read(None)
    assert files.not_taken == [wrong]
    assert door.given is None
    files.take(read, cast(NativeDoor, door))
    assert files.not_taken == []
    assert door.given is not None

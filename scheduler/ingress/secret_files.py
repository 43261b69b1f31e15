"""The files of tokens and certificates: what is wrong with them, and their last usable content.

A running process keeps what it has read when a file breaks, for example half-written by whatever
manages the configuration. One that starts meanwhile, because its predecessor crashed, has only the
copies that are made here. A box that was ended in the middle of its life goes on with them too, if
the files are broken as they were when it refused them; whoever has changed one since is there to
read the mistake, and may have wanted to shut somebody out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scheduler.config.box import Config
from scheduler.config.cloud import CloudConfig, CloudTlsConfig
from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError
from scheduler.files import replace_file, sync_folder
from scheduler.ingress.certificates import server_context
from scheduler.tenants import load_access, read_token

Files = Mapping[str, Path]

_REFUSED = "refused"
"""The note among the copies on what was in the files when they were found broken."""


class FileGroup(NamedTuple):
    """Files that can only be used together.

    Attributes:
        name: What they are, for people.
        files: Their paths, by the key in their section of the configuration.
        check: Yields what is wrong with such files, as far as those that it gets tell.
        put: Returns a configuration with other such files.
    """

    name: str
    files: dict[str, Path]
    check: Callable[[Files], Iterator[ConfigError]]
    put: Callable[[Config, Files], Config]

    def problems(self, readable: Callable[[Path], bool] = lambda path: True) -> list[ConfigError]:
        """What is wrong with those of the files that are to be read."""
        return list(self.check({key: path for key, path in self.files.items() if readable(path)}))


def groups_of(config: Config) -> list[FileGroup]:
    """All such files that a configuration names."""
    named = {"token_file": config.token_file, "tenants_file": config.tenants_file}
    found = [FileGroup("tokens", _given(named), _wrong_tokens, _put_tokens)]
    if (tls := config.tls) is not None:
        named = {"cert": tls.cert, "key": tls.key, "client_ca": tls.client_ca}
        found.append(FileGroup("certificates", _given(named), _wrong_certificates, _put_tls))
    if config.neighbours is not None:
        shown = _given({"token_file": config.shown_token_file})
        found.append(FileGroup("token for other boxes", shown, _wrong_shown, _put_shown))
    for cloud in config.cloud:
        files = {**_given({"token_file": cloud.token_file}), **_tls_files(cloud)}
        check, put = partial(_wrong_cloud, cloud), partial(_put_cloud, cloud.name)
        found.append(FileGroup(f"files of cloud {cloud.name}", files, check, put))
    return [group for group in found if group.files]


class LastGood:
    """Copies of the files' last usable content, in a folder that only this user can enter.

    The scheduler makes them; an agent that stops in an orderly way removes them.

    Args:
        state_dir: The box's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        """Reads and writes nothing yet."""
        self._folder = state_dir / "last_good"
        self._writing = threading.Lock()

    def usable(
        self, config: Config, is_new: bool = False
    ) -> tuple[Config, list[tuple[str, ConfigError]]]:
        """The configuration with the copies in place of files that can't be used.

        Args:
            config: The configuration.
            is_new: Whether this is no further process of the box that made the copies. Then they
                count only for files that are as that box had refused them.

        Returns:
            The configuration, in which files that can't be used stay where there is no copy, and
            what is wrong with those that were replaced, with the name of their group.
        """
        replaced = []
        for group in groups_of(config):
            if not (problems := group.problems()) or (is_new and not self._has_refused(group)):
                continue
            copies = self._copies(group)
            if all(map(os.path.exists, copies.values())) and not any(group.check(copies)):
                config = group.put(config, copies)
                replaced += [(group.name, problem) for problem in problems]
        return config, replaced

    def begin(self, config: Config, stay: Collection[str]) -> None:
        """Removes what an earlier box has left, except the copies of some groups.

        Args:
            config: The configuration.
            stay: The names of the groups.
        """
        with self._writing:
            self._remove_but(group for group in groups_of(config) if group.name in stay)

    def keep(self, config: Config) -> None:
        """Copies the files that can be used now; the copies of others stay.

        Where a copy can't be written, as on a full disk, there is none afterwards: an old one might
        let in somebody who has been shut out since.
        """
        groups = groups_of(config)
        with self._writing:
            self._remove_but(groups)
            for group in groups:
                (self._refuse if group.problems() else self._copy)(group)

    def forget(self) -> None:
        """Removes all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, group: FileGroup) -> None:
        place = self._place(group)
        fresh = place.with_name(f"{place.name}.new")
        try:
            now = {key: path.read_bytes() for key, path in group.files.items()}
        except OSError:  # it has just gone
            return
        with suppress(OSError):
            if {key: path.read_bytes() for key, path in self._copies(group).items()} == now:
                (place / _REFUSED).unlink(missing_ok=True)
                return
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fresh.mkdir(mode=0o700)
            for key, content in now.items():
                replace_file(fresh / key, content, durable=True, mode=0o600)
            if any(group.check({key: fresh / key for key in now})):  # written to meanwhile
                return
            # In two steps, so that a certificate is never beside another one's key.
            shutil.rmtree(place, ignore_errors=True)
            fresh.rename(place)
            sync_folder(self._folder)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _remove_but(self, groups: Iterable[FileGroup]) -> None:
        wanted = {self._place(group).name for group in groups}
        for other in self._folder.glob("*"):
            if other.name not in wanted:
                shutil.rmtree(other, ignore_errors=True)

    def _refuse(self, group: FileGroup) -> None:
        """Notes that what is in the files now is known to be broken."""
        mark = _digest(group.files)
        with suppress(OSError):  # there is no copy, or no room
            if not self._has_refused(group):
                replace_file(self._place(group) / _REFUSED, mark, durable=True, mode=0o600)

    def _has_refused(self, group: FileGroup) -> bool:
        with suppress(OSError):
            return (self._place(group) / _REFUSED).read_text() == _digest(group.files)
        return False

    def _copies(self, group: FileGroup) -> dict[str, Path]:
        place = self._place(group)
        return {key: place / key for key in group.files}

    def _place(self, group: FileGroup) -> Path:
        """The folder of a group's copies; files of other names have another one."""
        paths = "\n".join(f"{key} {path}" for key, path in group.files.items())
        mark = hashlib.blake2b(paths.encode(), digest_size=8).hexdigest()
        return self._folder / f"{group.name.replace(' ', '-')}-{mark}"


def _digest(files: Files) -> str:
    """A mark of what is in files now, and of whether others may read them."""
    mark = hashlib.blake2b(digest_size=16)
    for key, path in files.items():
        try:
            told = f"{path.stat().st_mode:o}", hashlib.blake2b(path.read_bytes()).hexdigest()
        except OSError as error:
            told = "", str(error.errno)
        mark.update(f"{key} {told}\n".encode())
    return mark.hexdigest()


def _tls_files(cloud: CloudConfig) -> dict[str, Path]:
    tls = cloud.tls
    return _given({"ca": tls.ca, "cert": tls.cert, "key": tls.key})


def _given(named: Mapping[str, Path | None]) -> dict[str, Path]:
    return {key: path for key, path in named.items() if path is not None}


def _raised(check: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        check()
    except ConfigError as error:
        yield error


def _wrong_tokens(files: Files) -> Iterator[ConfigError]:
    token, tenants = files.get("token_file"), files.get("tenants_file")
    if together := list(_raised(lambda: load_access(token, tenants))):
        alone = [
            *_raised(lambda: load_access(token, None)),
            *_raised(lambda: load_access(None, tenants)),
        ]
        yield from alone or together


def _put_tokens(config: Config, files: Files) -> Config:
    return config.model_copy(update=dict(files))


def _wrong_certificates(files: Files) -> Iterator[ConfigError]:
    if files.keys() >= {"cert", "key"}:
        yield from _raised(lambda: server_context(TlsConfig(**files)))


def _put_tls(config: Config, files: Files) -> Config:
    return config.model_copy(update={"tls": TlsConfig(**files)})


def _wrong_shown(files: Files) -> Iterator[ConfigError]:
    for path in files.values():
        yield from _raised(partial(read_token, path))


def _put_shown(config: Config, files: Files) -> Config:
    assert config.neighbours is not None
    neighbours = config.neighbours.model_copy(update=dict(files))
    return config.model_copy(update={"neighbours": neighbours})


def _wrong_cloud(cloud: CloudConfig, files: Files) -> Iterator[ConfigError]:
    from scheduler.daemon.cloud.dialing import ssl_context, token_to_show  # most have no cloud

    if "token_file" in files:
        yield from _raised(partial(token_to_show, files["token_file"]))
    if cloud.is_secure and _tls_files(cloud).keys() <= files.keys():
        yield from _raised(partial(ssl_context, _with_files(cloud, files)))


def _put_cloud(name: str, config: Config, files: Files) -> Config:
    clouds = tuple(
        _with_files(cloud, files) if cloud.name == name else cloud for cloud in config.cloud
    )
    return config.model_copy(update={"cloud": clouds})


def _with_files(cloud: CloudConfig, files: Files) -> CloudConfig:
    own = {key: path for key, path in files.items() if key != "token_file"}
    update = {"token_file": files.get("token_file"), "tls": CloudTlsConfig(**own)}
    return cloud.model_copy(update=update)

"""The tokens and certificates that a scheduler uses, read at its start and whenever they change."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from scheduler.config.box import Config
from scheduler.config.problems import ConfigError
from scheduler.daemon.parts import token_for_others
from scheduler.ingress.certificates import DoorContext
from scheduler.ingress.native import NativeDoor
from scheduler.ingress.secret_files import LastGood
from scheduler.tenants import Access, load_access

log = structlog.get_logger()


class Read(NamedTuple):
    """What files hold now.

    Attributes:
        access: The access rules; None if they can't be read.
        token: The token for other boxes; None if there is none, or it can't be read.
        not_taken: What is wrong with the files that can't be used.
    """

    access: Access | None
    token: str | None
    not_taken: list[str]


class TakenFiles:
    """Reads the files of a configuration, each kind as far as it can be used.

    Args:
        config: The configuration; what it names of such files changes only with a restart.
        copies: Whether their last usable content is kept, for a process that starts while they are
            broken. Replicas of a cloud application share a state folder, and have no copies.

    Attributes:
        not_taken: What is wrong with the files that could not be used the last time; what doors
            have been given since then is none of it.
    """

    def __init__(self, config: Config, copies: bool) -> None:
        """Reads nothing yet."""
        self._config = config
        self._copies = copies
        self._last_good = LastGood(config.state_dir)
        self.not_taken: list[str] = []

    def usable(self) -> Config:
        """The configuration, with the last usable content of its files that are broken."""
        usable, self.not_taken = self._usable()
        return usable

    def _usable(self) -> tuple[Config, list[str]]:
        not_taken: list[str] = []
        usable, broken = self._last_good.usable(self._config)
        for name, problem in broken:
            _take_not(name, problem, not_taken)
        return usable, not_taken

    def keep(self) -> None:
        """Keeps the content of the files that can be used now."""
        if self._copies:
            self._last_good.keep(self._config)

    def read(self, tls: DoorContext | None) -> Read:
        """Reads the files again for `take`; a long one takes a while, so not on the doors' loop.

        Args:
            tls: The certificates of the doors, which apply to handshakes from now on.
        """
        usable, not_taken = self._usable()
        if tls is not None and usable.tls is not None:
            try:
                tls.read_again(usable.tls)
            except ConfigError as error:
                _take_not("certificates", error, not_taken)
        access, token = None, None
        try:
            access = load_access(usable.token_file, usable.tenants_file)
        except ConfigError as error:
            _take_not("tokens", error, not_taken)
        if usable.neighbours is not None:
            try:
                token = token_for_others(usable)
            except ConfigError as error:
                _take_not("token for other boxes", error, not_taken)
        return Read(access, token, not_taken)

    def take(self, read: Read, door: NativeDoor) -> None:
        """Gives a door what could be read, in the event loop of the door."""
        door.take_access(read.access or door.rules.access)  # certificates may be others, too
        if door.neighbours is not None and read.token is not None:
            door.neighbours.token = read.token
        self.not_taken = read.not_taken


def _take_not(what: str, error: ConfigError, not_taken: list[str]) -> None:
    log.error(f"{what} not applied", error=str(error))
    if str(error) not in not_taken:  # the box's own token may be that for other boxes too
        not_taken.append(str(error))

"""The tokens and certificates that a scheduler uses, read at its start and whenever they change."""

from __future__ import annotations

import structlog

from scheduler.config.box import Config
from scheduler.config.problems import ConfigError
from scheduler.daemon.parts import token_for_others
from scheduler.ingress.certificates import DoorContext
from scheduler.ingress.native import NativeDoor
from scheduler.ingress.secret_files import LastGood
from scheduler.tenants import load_access

log = structlog.get_logger()


class TakenFiles:
    """Applies the files of a configuration, each kind as far as it can be used.

    Args:
        config: The configuration; what it names of such files changes only with a restart.
        copies: Whether their last usable content is kept, for a process that starts while they are
            broken. Replicas of a cloud application share a state folder, and have no copies.

    Attributes:
        not_taken: What is wrong with the files that could not be applied the last time.
    """

    def __init__(self, config: Config, copies: bool) -> None:
        """Reads nothing yet."""
        self._config = config
        self._copies = copies
        self._last_good = LastGood(config.state_dir)
        self.not_taken: list[str] = []

    def usable(self) -> Config:
        """The configuration, with the last usable content of its files that are broken."""
        self.not_taken = []
        usable, broken = self._last_good.usable(self._config)
        for name, problem in broken:
            self._take_not(name, problem)
        return usable

    def keep(self) -> None:
        """Keeps the content of the files that can be used now."""
        if self._copies:
            self._last_good.keep(self._config)

    def apply(self, usable: Config, door: NativeDoor, tls: DoorContext | None) -> None:
        """Gives the doors what `usable` returned; call this on their event loop."""
        if tls is not None and usable.tls is not None:
            try:
                tls.read_again(usable.tls)
            except ConfigError as error:
                self._take_not("certificates", error)
        try:
            access = load_access(usable.token_file, usable.tenants_file)
        except ConfigError as error:
            self._take_not("tokens", error)
            return
        door.take_access(access)
        if door.neighbours is not None:
            try:
                door.neighbours.token = token_for_others(usable)
            except ConfigError as error:
                self._take_not("token for other boxes", error)

    def _take_not(self, what: str, error: ConfigError) -> None:
        log.error(f"{what} not applied", error=str(error))
        self.not_taken.append(str(error))

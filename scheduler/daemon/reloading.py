"""Reads the configuration file again; of its changes, only the policy is applied at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from pydantic import ValidationError

from scheduler.config.box import Config, load_config
from scheduler.config.last_config import EMPTY, LastConfig
from scheduler.config.policy import PolicyConfig
from scheduler.config.problems import ConfigError, Problem
from scheduler.core.policy import Policy
from scheduler.daemon.driver import Driver
from scheduler.daemon.hung_policy import HungPolicy
from scheduler.device_specs import check_here
from scheduler.files import read_regular, replace_file
from scheduler.policy_loading import check_policy, files_of
from workers.starting_again import is_brought_back

log = structlog.get_logger()

_READING_S = 1.0
"""`status` mentions a configuration reload that has taken longer than this."""

_HUNG_POLICY = "hung-policy.json"
"""File in the folder of an agent run: a note for the next scheduler about a policy that hung."""

_LAST_POLICY = "last-policy.json"
"""And one about the policy of the last configuration without mistakes."""


class Reloaded(NamedTuple):
    """The result of reading a configuration file again.

    Attributes:
        config: The old configuration, with the changes that are applied.
        not_taken: Messages about changes that are not applied.
        policy: The configured policy, loaded; None without a file, or if the file has mistakes.
        files: The files that the policy was loaded from, with their content.
    """

    config: Config
    not_taken: list[str]
    policy: Policy | None
    files: dict[Path, bytes]


class LastPolicy:
    """The policy of the last file without mistakes, noted for the next scheduler of an agent's run.

    The agent gives every scheduler that Ray starts the configuration that it was itself started
    with; if the file has mistakes by then, that is not the last one in use.

    Args:
        path: The note's file, in the folder of this agent run.
    """

    def __init__(self, path: Path) -> None:
        """Reads and writes nothing yet."""
        self._path = path

    def note(self, policy: PolicyConfig) -> None:
        """Writes the note."""
        with contextlib.suppress(OSError):  # without it, the agent's own configuration counts
            replace_file(self._path, policy.model_dump_json(), mode=0o600)

    def within(self, config: Config) -> Config:
        """A configuration with the noted policy, or as it is where there is no note."""
        try:
            policy = PolicyConfig.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return config
        return config.model_copy(update={"policy": policy})


def reloaded(old: Config, config_file: Path | None, over: Mapping[str, Any]) -> Reloaded:
    """Combines the old configuration with the policy that the file names now.

    A file with mistakes, or one that has been emptied, is reported and changes nothing; changes
    that need a restart are reported.
    """
    if config_file is None:
        return Reloaded(old, [], None, {})
    try:
        new = load_config(config_file, over)
        if new != old and _is_empty(config_file):
            raise ConfigError(str(config_file), [Problem("", EMPTY)])
        files = files_of(new.policy.name, new.policy.options)
        policy = check_policy(new.policy, config_file)
        if new.devices != old.devices:  # the agent has checked those that it was started with
            check_here(new, config_file)
    except ConfigError as error:
        log.error("configuration not applied", file=str(config_file), error=str(error))
        return Reloaded(old, [str(error)], None, {})
    taken = old.model_copy(update={"policy": new.policy})
    waiting = [key for key in Config.model_fields if getattr(new, key) != getattr(taken, key)]
    if waiting:
        log.warning("changes wait for the next start", file=str(config_file), keys=waiting)
    told = f"{config_file}: changes to {', '.join(waiting)} wait for the next start"
    return Reloaded(taken, [told] if waiting else [], policy, files)


def _is_empty(file: Path) -> bool:
    try:
        return not read_regular(file).strip()
    except OSError:  # just removed
        return True


def first_policy(
    begun: Reloaded, config_file: Path | None, hung: str | None
) -> tuple[Policy | None, str | None]:
    """The policy that a scheduler begins with, or the reason to begin without the configured one.

    Args:
        begun: The configuration, as read.
        config_file: Its file.
        hung: Why the policy must not be tried again; None if it may be.

    Raises:
        ConfigError: The policy can't be loaded. A scheduler that Ray restarted does not raise: its
            predecessor had loaded the policy, and the files have gone or broken since.
    """
    if hung is not None:
        return None, hung
    if begun.policy is not None:
        return begun.policy, None
    try:
        return check_policy(begun.config.policy, config_file), None
    except ConfigError as error:
        if not is_brought_back():
            raise
        log.error("the policy can't be loaded any more", error=str(error))
        return None, str(error)


class LiveConfig:
    """The configuration in use, and its file, whose policy is applied whenever the file changes.

    Args:
        config: The configuration that the agent was started with.
        file: The file; None if there is none.
        over: Settings that override the file, as in `load_config`.
        folder: The folder of this agent run, for notes to the next scheduler.

    Attributes:
        config: The configuration in use.
        not_taken: Messages about changes that are not applied.
    """

    def __init__(
        self, config: Config, file: Path | None, over: Mapping[str, Any], folder: Path
    ) -> None:
        """Reads the file: a scheduler that Ray restarted begins with what is in it by now."""
        self._file, self._over = file, over
        self._last_policy = LastPolicy(folder / _LAST_POLICY)
        self._hung_policy = HungPolicy(folder / _HUNG_POLICY)
        self._begun = begun = reloaded(self._last_policy.within(config), file, over)
        self.config, self.not_taken = begun.config, begun.not_taken
        policy = self.config.policy
        self._last_config = None if file is None else LastConfig(file, over, config.state_dir)
        self._note(begun)
        self._policy_files = begun.files or files_of(policy.name, policy.options)
        self._is_stale = threading.Event()
        self._reading_since_s: float | None = None

    def first_policy(self) -> tuple[Policy | None, str | None]:
        """The policy to begin with, or why not with the configured one; see `first_policy`.

        Raises:
            ConfigError: The policy can't be loaded.
        """
        hung = self._hung_policy.why(self.config.policy, self._policy_files)
        return first_policy(self._begun, self._file, hung)

    def note_hung(self, driver: Driver, why: str) -> None:
        """Keeps the next scheduler from the policy if that is what the driver hangs in."""
        policy = self.config.policy
        if driver.policy == (policy.name, policy.options):
            self._hung_policy.note(policy, self._policy_files, why)

    def not_taken_yet(self) -> list[str]:
        """A line for the status while a reload takes unusually long; empty otherwise."""
        since_s = self._reading_since_s
        if since_s is None or (took_s := time.monotonic() - since_s) < _READING_S:
            return []
        return [f"{self._file}: its policy has been loading for {took_s:.0f} s"]

    def watch(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the thread that reads the file, since a policy's imports may take seconds.

        It is started before it is needed, because then the box may be at its limit of threads.

        Args:
            driver: Takes the policy.
            loop: The driver's loop.
        """
        reading = threading.Thread(target=self._read, args=(driver, loop), name="laxity-reload")
        reading.daemon = True
        reading.start()

    def read_again(self) -> None:
        """Has the file read again and applied, in the background."""
        self._is_stale.set()

    def _read(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            self._is_stale.wait()
            self._is_stale.clear()
            self._reading_since_s = time.monotonic()
            try:
                read = reloaded(self.config, self._file, self._over)
                if read.policy is not None:  # on disk before it is in use
                    self._note(read)
                asyncio.run_coroutine_threadsafe(self._take(read, driver), loop).result()
                if read.policy is None:  # told of, as in the log, before a slow disk has noted it
                    self._note(read)
            except BaseException as error:  # whatever it is: later changes must still be read
                log.exception("configuration not applied", file=str(self._file))
                self.not_taken = [f"{self._file}: {error!r}"]
            finally:
                self._reading_since_s = None

    def _note(self, read: Reloaded) -> None:
        """Keeps what can be used for schedulers and lives to come."""
        if read.policy is not None:
            self._last_policy.note(read.config.policy)
        if self._last_config is not None:
            (self._last_config.refuse if read.policy is None else self._last_config.keep)()

    async def _take(self, read: Reloaded, driver: Driver) -> None:
        self._reading_since_s = None  # a status with the new policy must not call it loading
        was, self.config, self.not_taken = self.config.policy, read.config, read.not_taken
        policy = self.config.policy
        # A policy that failed is tried again: what it lacked may exist by now.
        is_due = policy != was or read.files != self._policy_files or driver.fell_back
        if read.policy is not None and is_due:
            self._policy_files = read.files
            self._hung_policy.forget()
            driver.take_policy(read.policy, policy.name, policy.options)  # may hang
